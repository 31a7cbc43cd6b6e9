// Calls on buffers that all ranks see: one copy and no FIFO.
//
// In a program of one hop, everything that a rank receives is an input of its sender or the result of a reduction that goes to
// all ranks. Such a program needs to know only where the peers' buffers are, when inputs are ready and when they have been
// used. So every rank offers its buffers when it begins the call. If all senders offer theirs, each rank reads the inputs in
// place, stores its result in its destination (for all_reduce, in every rank's output), publishes that it is done with the
// buffers of others, and waits until all ranks are. If a sender does not offer (its buffers are private to its process, or
// overlap), the call goes through FIFOs. Both follow from the offers alone, so all ranks decide alike without further messages.
//
// Ranks whose buffers are all private lose no time with that: offers begin once a rank has something to offer. That rank
// publishes from which call on it announces its offers, the others follow, and each then publishes from which call on it
// reads the announcements of all. An offer counts only once all ranks read announcements.
//
// Mapping a peer's buffer can fail (no descriptor or address space left). The first call with a buffer therefore has an extra
// round, in which every rank reports whether it has mapped the new buffers; if one has not, the call goes through FIFOs.
#pragma once
#include <unordered_set>
#include <vector>

#include "control/segment.h"
#include "plan/call.h"
#include "transport/buffers.h"
#include "transport/neighbours.h"

namespace collc {

// What a rank needs to know about the other ranks' part in a program of one hop.
struct OneHop {
  bool is = false;
  bool completes = false;  // results are stored in everyone's output; then all ranks send
  std::vector<uint32_t> senders;  // NCCL ranks
  bool sends = false;  // this rank is one of them
};
// True if another rank completes what a step receives: in a call of a single copy it puts that into our output itself.
inline bool takes_result(const OneHop &program, const Step &step) {
  return program.completes && step.nrecv == 1 && (step.flags & kInput) == 0;
}
OneHop one_hop(const Tables &tables, const Placement &placement, const Program &program, uint32_t rank);

// What one rank publishes about its calls. Only that rank writes it.
struct alignas(kLine) Offer {
  struct Place {
    uint64_t address;  // in the rank's process
    uint64_t buffer;  // number of the buffer of ncclMemAlloc that it is in; 0: none
  };
  std::atomic<uint64_t> number;  // of the call that runs; 0 while the rest is written
  std::atomic<uint64_t> signature;  // of the call; its last bits are flags
  Place input, output;
  alignas(kLine) BufferHandle buffers[2];  // for peers that have not mapped them: input, output
  alignas(kLine) std::atomic<uint64_t> mapped;  // 2 * the last call in which it was asked to map; + 1 if it could not
  std::atomic<uint64_t> finished;  // the last call for which it is done with other ranks' buffers, as finished_word()
  alignas(kLine) std::atomic<uint64_t> announces_from;  // it announces offers from this call on; 0: not yet
  std::atomic<uint64_t> reads_from;  // it reads announcements from this call on; 0: not yet
};

// The memory that the ranks of a communicator need for that.
struct Offers {
  std::atomic<uint32_t> announcers;
  Offer of[1];  // by NCCL rank
  static constexpr uint64_t bytes(uint32_t nranks) { return kLine + nranks * sizeof(Offer); }
};

class SingleCopy {
 public:
  SingleCopy(Segment &segment, Offers &offers, uint32_t rank, const Neighbours &neighbours);

  // True if no rank has had a buffer to offer so far, and this one has none either.
  bool is_idle() const {
    return !neighbours_.share_all() && announcers_.load(std::memory_order_relaxed) == 0 && !has_buffers();
  }
  // Begins a call of a program of one hop, the same on all ranks. Offers what it sends and, if others store there, its
  // output, where that is `allowed`. False if the call goes through FIFOs, else agree() tells.
  bool begin(const Call &call, const OneHop &program, bool allowed, uint64_t input_bytes, uint64_t output_bytes);
  // What the ranks have agreed on so far.
  enum class Agreement : uint32_t { kOpen, kFifos, kDirect, kDiffers };
  Agreement agree();
  // This rank is done with the buffers of other ranks.
  void finish();
  // kDirect: all other ranks are done with this rank's buffers. kOpen: some are not. kDiffers: one has finished another call.
  Agreement others_finished();
  // The rank that agree() or others_finished() waits for; with kDiffers the one that calls something else.
  uint32_t blocked_on() const { return blocked_on_; }

  // Others may be storing results in this rank's output.
  bool offers_output() const { return offers_output_; }
  void withdraw() { offers_output_ = false; }
  // Where the buffers of a sender lie here; once all have agreed on kDirect, for then all have mapped them.
  const char *input_of(uint32_t peer) { return locate(peer, offers_[peer].input, 0); }
  char *output_of(uint32_t peer) { return locate(peer, offers_[peer].output, 1); }

 private:
  // Flags of an offer.
  static constexpr uint64_t kOffered = 1;  // all that the program needs of this rank
  static constexpr uint64_t kNew = 2;  // with a buffer that others may not have mapped
  static constexpr uint64_t kFlags = 3;

  struct Found {  // a peer's buffer
    uint64_t number = 0;
    char *at = nullptr;
    uint64_t base = 0;  // in its process
  };

  // The call that has finished, in one word: its number, and bits of its history, since only senders publish signatures.
  uint64_t finished_word() const {
    const uint64_t mixed = signature_ * 0x9e3779b97f4a7c15;
    return number_ << kFinishedBits | mixed >> (64 - kFinishedBits);
  }
  static constexpr uint64_t kFinishedBits = 16;

  bool update_announcing(bool offers);
  bool all(std::atomic<uint64_t> Offer::*since) const;
  bool offer_one(Offer::Place &place, int which, const void *at, uint64_t bytes);
  Agreement collect_offers();
  Agreement collect_mappings();
  bool map_offered();
  char *locate(uint32_t peer, const Offer::Place &place, int which);
  void ring_all();

  Segment &segment_;
  std::atomic<uint32_t> &announcers_;
  Offer *offers_;
  uint32_t rank_;
  const Neighbours &neighbours_;
  BufferLookup own_[2];  // input, output
  std::unordered_set<uint64_t> shown_;  // numbers of own buffers that all have mapped
  uint64_t last_shown_[2] = {};
  MappedBuffers mapped_;
  std::vector<Found> found_;  // by peer: input, output
  bool announces_ = false;  // this rank announces its offers
  uint64_t reads_from_ = 0;  // it reads announcements from this call on; 0: not yet
  bool all_read_ = false;

  // The current call.
  const OneHop *program_ = nullptr;
  uint64_t number_ = 0, signature_ = 0;
  bool offered_ = false, offers_output_ = false;
  bool has_new_ = false;  // someone offers a buffer that others may not have mapped
  bool reported_mapped_ = false;  // this rank has said whether it could
  bool failed_ = false;  // someone could not
  uint32_t next_ = 0;  // to look at: of the senders, or of all ranks
  uint32_t blocked_on_ = 0;
};

}  // namespace collc
