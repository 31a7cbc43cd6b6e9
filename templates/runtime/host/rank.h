// One rank on the host target: its ends of the FIFOs, and the call that it is executing.
#pragma once
#include <memory>
#include <vector>

#include "executor/backend.h"
#include "collc/step_program.h"
#include "control/deadlock.h"
#include "transport/neighbours.h"
#include "host/reduce.h"
#include "transport/single_copy.h"
#include "transport/transfers.h"

namespace collc {

// Every FIFO has, in shared memory,
//   a line written by its source: chunks written so far (tail), and for every slot a tag: the signature of the call that
//   wrote it, whose last bits say where the chunk is if not in the slot. Who is behind learns of several chunks at once;
//   a line per slot: the chunk's address; or, instead of all that, the chunk itself with its number (from 1) and tag if it
//   is that small: then a reader misses its cache once;
//   a line per reader: chunks that it has read so far (head);
//   slots * slot_bytes of data, written once and read by all readers.
// Numbers never wrap (64 bits) and go on from call to call, so nothing is ever reset.
struct FifoPlace {
  uint64_t tail;  // offsets in the target's shared memory
  uint64_t lines;
  uint64_t heads;  // of reader 0
  uint64_t slots;
};

// Where a chunk stands that did not pass through its slot.
struct Sight {
  uint64_t address;  // in its writer's process
  uint64_t bytes;
};

struct alignas(kLine) SlotLine {
  static constexpr uint32_t kData = kLine - 2 * sizeof(uint64_t);
  std::atomic<uint64_t> number;
  uint64_t tag;
  union {  // ordered by the number, as is the slot
    Sight sight;
    unsigned char data[kData];
  };
};
static_assert(sizeof(SlotLine) == kLine, "a line per slot");

// Where the offers and then the FIFOs of an allocation lie in the target's shared memory.
class FifoLayout {
 public:
  FifoLayout(const Tables &tables, const Allocation &allocation);
  const FifoPlace &operator[](uint32_t fifo) const { return places_[fifo]; }
  uint64_t end() const { return end_; }

 private:
  std::vector<FifoPlace> places_;
  uint64_t end_ = 0;
};

// The layout of the whole target's memory: FIFOs of the programs, then the queues of transfers.
TransferLayout host_layout(const Tables &tables, const Placement &placement);

class HostRank final : public RankBackend {
 public:
  explicit HostRank(const RankContext &context);
  // Finds out how the ranks reach each other's memory; collective, while the communicator is made.
  Status meet(const RankContext &context);

  // Says what this rank calls; first of all for a call without a program.
  void note(const Call &call) {
    context_.segment->note_call(context_.rank, log_, call.number, call.signature, call.count, call.what);
  }
  // Makes `call` the current collective; it stands until that is done.
  void begin(const Call &call);
  // Adds a transfer beside it; its status is set if it fails.
  void post(const Call &call, Status *status) {
    if (call.number != 0 && !call.continues) note(call);
    transfers_.post(call, status);
  }
  // Advances every channel and transfer as far as it goes; returns true if any moved.
  bool advance();
  bool done() const { return remaining_ == 0 && mode_ == Mode::kFifos; }
  bool idle() const { return done() && transfers_.idle(); }
  std::vector<ChannelTimes> times() const override { return times_; }
  // What broke the communicator; then nothing runs any more.
  const Status &failure() const { return failure_; }
  // Looks for reasons never to be served: an abort, a dead peer, a peer that calls something else, the time limit.
  void diagnose(int64_t waited_us);
  // Marks those without whom this rank cannot go on; says what it is in.
  InCall find_waits(std::vector<bool> *ranks) const;

  Segment &segment() { return *context_.segment; }
  uint32_t rank() const { return context_.rank; }
  // True if a rank that this one waits for was last seen on this core.
  bool shares_core() const;
  bool cores_are_free() const { return context_.nranks <= context_.cores; }
  // Chunks from here on go by address: below, waiting for readers costs more than a copy.
  static constexpr uint64_t kLeastDirect = 4 << 10;

 private:
  friend class HostVerbs;

  // This rank's end of a FIFO.
  struct End {
    std::atomic<uint64_t> *tail = nullptr;
    uint64_t *tags = nullptr;  // per slot; on the tail's line, ordered by it
    SlotLine *lines = nullptr;
    char *heads = nullptr;           // counters of the readers, a line apart; for a reader its own
    char *slots = nullptr;
    const uint32_t *readers = nullptr;
    uint32_t nreaders = 0;
    Reach reach = Reach::kSlots;  // of all readers into the source's memory; for a reader its own
    bool direct = false;          // the source has sent addresses that may still be read
    uint32_t source = 0;    // plan rank
    uint64_t position = 0;  // chunks of earlier calls
    uint64_t fetched = 0;   // chunks that the kernel has copied for a reader, in this call or an earlier one
    uint64_t seen = 0;      // the peer's counter when last looked at: tail for a reader, least head for a writer
  };

  struct ChannelState {
    const Step *steps = nullptr;
    uint32_t nsteps = 0;
    uint64_t iterations = 0;
    Cursor at = {};
    bool done = true;
    uint32_t blocked_on = 0;  // plan rank
    uint64_t chunk = 0;
    uint64_t busy_ns = 0;  // of this call
  };

  // A step in which this rank computes or copies in a call of a single copy.
  struct OwnStep {
    const Step *step;
    uint32_t channel;
  };

  // How the last call of a program was cut: the same call again, as in training, computes nothing.
  struct Cut {
    uint64_t count = 0;
    uint32_t element_bytes = 0;
    std::vector<ShareRange> shares;
    std::vector<uint64_t> iterations;  // by channel
    bool reduces_what_it_sends = false;
    OneHop hop;
    std::vector<OwnStep> own_steps;  // of a program of one hop
    size_t nbefore = 0;              // so many of them before this rank says that it has finished; others need no peer
  };

  // How the current call runs.
  enum class Mode : uint8_t {
    kFifos,
    kAgreeing,   // on buffers that all see, or FIFOs
    kFinishing,  // on such buffers, waits until others are done with its own
  };

  // Ends what runs and breaks the communicator for all ranks.
  void fail_all(const Status &status);
  const Cut &cut(const Call &call);
  bool reduces_what_it_sends(const Program &program) const;
  void choose_reduction();
  void copy_alone(const Call &call);
  bool is_reading(uint32_t peer) const;
  void wait_for_writer(uint32_t peer, int64_t start_us);
  bool advance_channels(uint32_t receives);
  void begin_fifos();
  // A call on buffers that all ranks see (single_copy_call.cpp).
  void find_own_steps(const Program &program, Cut *cut) const;
  bool pays_to_offer() const;
  void offer(bool apart);
  bool in_place() const;
  bool advance_single_copy();
  void run_single_copy();
  void prefetch_output() const;
  void run_own_steps(size_t begin, size_t end);
  void move_piece(const OwnStep &own, const ShareRange &share, uint64_t begin, uint64_t elements);
  void finish_channel(ChannelState &channel);
  // Says that others need no more of this rank for the call that runs.
  void finish_call() { context_.segment->line(context_.rank).calls.finished.store(call_->number, std::memory_order_release); }
  void count_time(size_t channel, uint64_t nanoseconds, bool reduced) {
    (reduced ? times_[channel].reducing : times_[channel].copying) += nanoseconds;
    channels_[channel].busy_ns += nanoseconds;
  }
  uint64_t input_bytes() const;
  uint64_t output_bytes() const;
  bool is_streamed() const;
  std::string waiting_for(const ChannelState &channel) const;
  std::string waiting_for_any() const;
  Status differing_call(uint32_t plan_rank) const;
  Status differing_transfer(const Transfers::Difference &difference) const;
  const RankChannel &rank_channel(const Program &program, uint32_t channel) const {
    return context_.tables->rank_channels[program.first_rank_channel + plan_rank_ * program.nchannels + channel];
  }
  // Where chunk `number` of a FIFO goes. A division costs as much as a line of another core.
  uint64_t slot_of(uint64_t number) const { return slot_mask_ != 0 ? number & slot_mask_ : number % slots_; }
  uint32_t nccl_rank(uint32_t plan_rank) const { return context_.placement.nccl_rank[plan_rank]; }

  RankContext context_;
  CallLog log_;
  uint32_t plan_rank_;
  uint32_t slots_ = 0;
  uint32_t slot_mask_ = 0;  // 0: slots_ is no power of two
  uint32_t slot_bytes_ = 0;
  bool timed_ = false;  // COLLC_BREAKDOWN
  uint64_t begun_ns_ = 0;
  std::vector<ChannelTimes> times_;
  uint32_t chunk_limit_ = 0;    // COLLC_CHUNK; 0: as the program says
  uint32_t channel_limit_ = 0;  // channels that run side by side; 0: all
  bool forced_ = false;  // COLLC_PROTO: everything goes through FIFOs
  uint32_t line_bytes_ = SlotLine::kData;  // up to so many bytes a chunk travels in its slot's line
  const FifoRef *refs_ = nullptr;
  std::vector<End> ends_;

  const Call *call_ = nullptr;  // the last one that was begun
  uint32_t element_bytes_ = 1;
  ReduceFunction reduce_ = nullptr;  // of the last type and operation
  ncclDataType_t reduced_type_ = {};
  ncclRedOp_t reduced_op_ = {};
  Finish finish_;  // for steps that complete a reduction
  bool streams_ = false;         // the result goes past the caches
  bool serves_first_ = false;    // sends go before steps that receive
  bool failed_to_read_ = false;  // a chunk that came by address may be wrong
  std::vector<Cut> cuts_;  // by program of the allocation
  const Cut *cut_ = nullptr;  // of the current call
  Mode mode_ = Mode::kFifos;
  SingleCopy single_copy_;
  bool keeps_input_ = true;  // what is sent of the input stands until it was read
  std::vector<ChannelState> channels_;
  uint32_t remaining_ = 0;  // channels that still run
  Transfers transfers_;
  Neighbours neighbours_;
  Status failure_;
};

}  // namespace collc
