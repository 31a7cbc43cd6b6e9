// Calls on buffers that all ranks can access: one copy and no FIFO.
//
// In a one-hop program, everything that a rank receives is either an input of its sender or the result of a reduction that
// goes to all ranks. To run such a program without FIFOs, a rank needs to know only where the peers' buffers are, when inputs
// are ready, and when they have been used. So every sender offers its buffers when it begins the call. If all senders offer
// theirs, each rank reads the inputs in place, stores its result in its destination (for all_reduce, in every rank's output),
// publishes that it has finished with the buffers of others, and waits until all ranks have finished. If a sender does not
// offer (its buffers are private to its process, or overlap), the call goes through FIFOs. Both cases follow from nothing but
// the offers, so all ranks decide alike without further messages.
//
// Offers start only when a rank has a buffer to offer, so that ranks whose buffers are all private lose no time. This rank
// publishes the number of the first call in which it announces its offers, and the other ranks follow. Then each rank
// publishes the number of the first call in which it reads the announcements of all ranks. An offer counts only when all
// ranks read announcements.
//
// Mapping a peer's buffer can fail (no descriptor or address space left). The first call with a buffer therefore has an extra
// round, in which every rank reports whether it has mapped the new buffers. If a rank has not, the call goes through FIFOs.
//
// The thread that runs a rank uses its object. No function blocks; the caller polls agree() and others_finished().
#pragma once
#include <unordered_set>
#include <vector>

#include "control/segment.h"
#include "plan/call.h"
#include "transport/buffers.h"
#include "transport/neighbors.h"

namespace collc {

// A one-hop program, as one rank sees it.
struct OneHop {
  bool is = false;  // the program has one hop
  // The ranks complete results and store them into the outputs of all ranks; then all ranks are senders.
  bool completes = false;
  std::vector<uint32_t> senders;  // NCCL ranks whose buffers others access
  bool sends = false;  // this rank is one of the senders
};
// Returns whether another rank completes the value that this step receives. In a single-copy call that rank stores it into
// this rank's output.
inline bool takes_result(const OneHop &program, const Step &step) {
  return program.completes && step.nrecv == 1 && (step.flags & kInput) == 0;
}
OneHop one_hop(const Tables &tables, const Placement &placement, const Program &program, uint32_t rank);

// The data that one rank publishes about its calls. Only this rank stores it. Memory order: `number` and `finished` publish
// the other members.
struct alignas(kLine) Offer {
  struct Place {
    uint64_t address;  // address in the rank's process
    uint64_t buffer;  // number of the ncclMemAlloc buffer that contains it; 0: none
  };
  std::atomic<uint64_t> number;  // of the running call; 0 while the other members change
  std::atomic<uint64_t> signature;  // of the call, with flags in its last bits
  Place input, output;
  alignas(kLine) BufferHandle buffers[2];  // input and output, for peers that have not mapped them
  // 2 * N for the last call N that asked this rank to map buffers; 2 * N + 1 if it could not.
  alignas(kLine) std::atomic<uint64_t> mapped;
  std::atomic<uint64_t> finished;  // finished_word() of the last call that needs no buffers of other ranks any more
  alignas(kLine) std::atomic<uint64_t> announces_from;  // the rank announces offers from this call on; 0: not yet
  std::atomic<uint64_t> reads_from;  // the rank reads announcements from this call on; 0: not yet
};

// The offers of all ranks of a communicator, in shared memory.
struct Offers {
  std::atomic<uint32_t> announcers;
  Offer of[1];  // by NCCL rank
  static constexpr uint64_t bytes(uint32_t nranks) { return kLine + nranks * sizeof(Offer); }
};

// One rank's part in single-copy calls.
class SingleCopy {
 public:
  SingleCopy(Segment &segment, Offers &offers, uint32_t rank, const Neighbors &neighbors);

  // Returns whether no rank has had a buffer to offer so far, and this rank has none either.
  bool is_idle() const { return !neighbors_.share_all() && announcers_.load(std::memory_order_relaxed) == 0 && !has_buffers(); }
  // Begins a call of a one-hop program; all ranks begin the same one. If `allowed`, offers the input if this rank sends, and
  // the output if other ranks store there. Returns false if the call goes through FIFOs; otherwise agree() decides.
  bool begin(const Call &call, const OneHop &program, bool allowed, uint64_t input_bytes, uint64_t output_bytes);
  // kOpen: a rank has not answered yet; kFifos, kDirect: all ranks have agreed; kDiffers: a rank has made another call.
  enum class Agreement : uint32_t { kOpen, kFifos, kDirect, kDiffers };
  Agreement agree();
  // Publishes that this rank needs no buffers of other ranks any more.
  void finish();
  // Returns kDirect if all other ranks have finished with this rank's buffers, kOpen if some have not, kDiffers if one has
  // finished another call.
  Agreement others_finished();
  // The rank that agree() or others_finished() waits for; after kDiffers, the rank that has made another call.
  uint32_t blocked_on() const { return blocked_on_; }

  // Returns whether other ranks may be storing results into this rank's output.
  bool offers_output() const { return offers_output_; }
  void withdraw() { offers_output_ = false; }
  // Returns where a buffer of a sender is in this process. Valid once all ranks have agreed on kDirect, because all have
  // mapped them then.
  const char *input_of(uint32_t peer) { return locate(peer, offers_[peer].input, 0); }
  char *output_of(uint32_t peer) { return locate(peer, offers_[peer].output, 1); }

 private:
  // Flags of an offer.
  static constexpr uint64_t kOffered = 1;  // this rank offers all that the program needs of it
  static constexpr uint64_t kNew = 2;  // some of it is in a buffer that other ranks may not have mapped
  static constexpr uint64_t kFlags = 3;

  struct Found {  // a mapped buffer of a peer
    uint64_t number = 0;
    char *at = nullptr;
    uint64_t base = 0;  // address in the peer's process
  };

  // The word for Offer::finished: the number of the call, and bits of the history of calls, because only senders publish
  // signatures.
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
  const Neighbors &neighbors_;
  BufferLookup own_[2];  // for input and output
  std::unordered_set<uint64_t> shown_;  // numbers of this rank's buffers that all other ranks have mapped
  uint64_t last_shown_[2] = {};
  MappedBuffers mapped_;
  std::vector<Found> found_;  // by 2 * peer, + 1 for the output
  bool announces_ = false;  // this rank announces its offers
  uint64_t reads_from_ = 0;  // this rank reads announcements from this call on; 0: not yet
  bool all_read_ = false;

  // The current call.
  const OneHop *program_ = nullptr;
  uint64_t number_ = 0, signature_ = 0;
  bool offered_ = false, offers_output_ = false;
  bool has_new_ = false;  // a rank offers a buffer that others may not have mapped
  bool reported_mapped_ = false;  // this rank has reported whether it could map the new buffers
  bool failed_ = false;  // a rank could not map a buffer
  uint32_t next_ = 0;  // next to look at: index in the senders, or rank
  uint32_t blocked_on_ = 0;
};

}  // namespace collc
