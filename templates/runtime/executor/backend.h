// The interface between the NCCL API and the executors of step programs. A library contains exactly one backend, host or
// CUDA.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/exchange.h"
#include "collc/tables.h"
#include "control/segment.h"
#include "plan/call.h"
#include "plan/gpu_place.h"
#include "plan/nvlinks.h"
#include "plan/pcie_paths.h"
#include "plan/tuning.h"

namespace collc {

// The facts about a rank that the backend gets at creation.
struct RankContext {
  const Tables *tables;
  Placement placement;
  std::shared_ptr<Segment> segment;  // its memory() has Backend::shared_bytes() bytes
  uint32_t nranks;
  uint32_t rank;   // NCCL rank
  uint64_t order;  // number among the communicators of a group, equal on all ranks
  uint32_t cores;  // CPU cores that the ranks may use together
  uint32_t most_channels = 0;  // maxCTAs of the configuration; 0: the tables' number
  std::vector<uint32_t> weights;  // weights of path classes, by program of the allocation, if COLLC_TUNING has any
  double timeout;  // seconds that a wait for data may take; 0: no limit
  uint32_t here = 0;  // ranks on this machine
  bool only_host_memory = false;  // the user forbids that GPUs of different ranks read each other's memory
  bool orders_launches = false;   // the user requests that kernels of one GPU start in the order of their calls
  NvLinks links;      // between the GPUs of the ranks
  std::vector<uint64_t> processes;  // number of each rank's process
  std::string secret;               // known only to the ranks
  double seconds = 0;               // limit for waits for other ranks at creation
  Exchange exchange;  // collective among the ranks, during creation
  // Reports to the others that this rank has failed, if they wait for it outside of an exchange; ends the creation.
  std::function<void(const Status &)> give_up;
  // Returns whether this process is aborting the communicator.
  std::function<bool()> stopped;
  // Returns whether stopped(), or the other ranks cannot be reached any more; during creation.
  std::function<bool()> gone;

  uint32_t plan_rank() const { return placement.plan_rank[rank]; }
  uint64_t timeout_ns() const { return static_cast<uint64_t>(timeout * 1e9); }
};

// Returns the outcome of a part of the creation in which ranks wait for each other outside of exchanges. A failure of this
// rank ends the creation for all ranks. If it has ended already, returns the reason that the exchange reports.
inline Status end_creation(const RankContext &context, const Status &outcome) {
  if (outcome.ok()) return outcome;
  std::vector<Bytes> none;
  if (context.gone()) COLLC_RETURN_IF_FAILED(context.exchange({}, &none));
  context.give_up(outcome);
  return outcome;
}

// Where the time of a channel's calls went, in ns.
struct ChannelTimes {
  uint64_t waiting = 0;  // for chunks, free slots, or other channels and ranks of the thread
  uint64_t copying = 0;
  uint64_t reducing = 0;
};

// The data of a check of links (communicator/link_check.h): two buffers that transfers can send from and receive into. While it
// exists, waits of the rank's transfers are limited.
class LinkBench {
 public:
  virtual ~LinkBench() = default;
  virtual void *buffer(bool sends) = 0;
  virtual cudaStream_t stream() = 0;
  // Each copies between the host and a buffer.
  virtual Status put(bool sends, const void *from, uint64_t bytes) = 0;
  virtual Status get(void *to, uint64_t bytes) = 0;
  // Blocks until the work on the stream is done. Fails after kMaxWaitSeconds, or when the communicator breaks.
  virtual Status wait() = 0;
  // Returns true if a transfer can join this rank with a peer unless both are in calls of one group.
  virtual bool can_transfer(uint32_t peer) const = 0;
  // Reads `bytes` at an address in the peer's memory in the way that its chunks are read; false if they never are.
  virtual bool read_address(uint32_t peer, uint64_t from, void *to, uint64_t bytes, Status *status) = 0;

  static constexpr double kMaxWaitSeconds = 60;
};

// The choice of programs by a rank that knows how fast its machine is. The same on all ranks.
class ProgramChooser {
 public:
  virtual ~ProgramChooser() = default;
  // Changes the programs that calls run.
  virtual void adapt(Choices *choices) const = 0;
  // Returns `program`, or `otherwise`, which may run in its place (Choices::widen), for a call of `bytes` now.
  virtual const Program &choose(const Program &program, const Program &otherwise, uint64_t bytes) const = 0;
};

// The buffers of a rank that other ranks read in place.
class BufferRegistry {
 public:
  virtual ~BufferRegistry() = default;
  // Calls will use this memory. Blocks for `seconds` at most, until other ranks can read it.
  virtual void offer_buffer(const void *memory, uint64_t bytes, double seconds) = 0;
  // The same from ncclCommRegister to ncclCommDeregister.
  virtual void register_buffer(const void *memory, uint64_t bytes) = 0;
  virtual void withdraw_buffer(const void *memory) = 0;
};

// The calls of a rank that go on after the function of the API has returned.
class AsyncCalls {
 public:
  virtual ~AsyncCalls() = default;
  virtual bool has_calls() const = 0;
  // Blocks until the calls of an aborted communicator have ended, for half a second at most.
  virtual void wait_for_aborted() const = 0;
};

// The path classes (nvlink, pcie, net) that share the calls of a rank.
class PathClasses {
 public:
  virtual ~PathClasses() = default;
  // From now on all calls that several classes share have these weights, and class_times() reports them. Must be called on all
  // ranks, while no call runs.
  virtual void force_weights(uint32_t weights) = 0;
  // A class has failed: calls that no rank has begun run without it, on all ranks. Returns false if that is known.
  virtual bool lose_class(uint32_t path_class, const std::string &why) = 0;
  // Writes when each class had done its part of the latest call, in nanoseconds from its start here; 0: it carried nothing.
  // Returns false if that is unknown.
  virtual bool class_times(uint64_t (&spent)[kClasses]) = 0;
};

// The backend's state of one rank. Owner: Communicator, which destroys it when no thread is in a call. A target without one of
// the groups of functions above returns null for it.
class RankBackend {
 public:
  virtual ~RankBackend() = default;
  // Returns the times by channel, of all calls so far; empty unless COLLC_BREAKDOWN was set at creation and the backend counts,
  // as kernels do that were built for it.
  virtual std::vector<ChannelTimes> times() const = 0;
  // Returns the protocol that a call of `bytes` (count times the element size) of a program runs over.
  virtual uint32_t protocol_of(const Program &program, uint64_t bytes) const = 0;
  // Returns true if this rank can run a program for a call (null: for some call). The same on all ranks. Each collective has a
  // program that all can run.
  virtual bool can_run(const Program &program, const Call *call) const = 0;
  // Returns the bytes of GPU memory of the communicator.
  virtual uint64_t gpu_bytes() const = 0;
  // Makes two buffers of `bytes` each.
  virtual Status make_link_bench(uint64_t bytes, std::unique_ptr<LinkBench> *made) = 0;
  virtual PathClasses *path_classes() = 0;
  virtual const ProgramChooser *chooser() const { return nullptr; }
  virtual BufferRegistry *buffers() { return nullptr; }
  virtual AsyncCalls *async_calls() { return nullptr; }
};

// One call and the rank that makes it.
struct Submission {
  RankBackend *rank;
  Call call;
  Status status;  // set by Backend::run
};

// Facts about a target that the code above it must know.
struct TargetFacts {
  uint32_t max_calls_ahead;  // calls that one rank may be ahead of another, a power of two; also the capacity of each call log
  bool notes_ends;  // call records say when calls end (CallLog::end)
  bool reads_factors;  // kernels read factors of scaled sums that lie in memory (ncclScalarDevice); else the call reads them
  bool may_span_servers;  // ranks may be on several servers: this library serves them, or the real NCCL takes them
  bool measures_links;  // a check of links inside a server measures the speed of the topology's links
  uint64_t max_checked_bytes;  // the largest message of a check of links
};

// The places of GPUs in this machine, for targets whose ranks are on GPUs.
class GpuLocator {
 public:
  virtual ~GpuLocator() = default;
  // Returns the place of this thread's current device.
  virtual GpuPlace place_of_device() = 0;
  // Returns the distance from that GPU to each GPU of `places`, as levels of plan/pcie_paths.h.
  virtual std::vector<uint8_t> paths_of_device(const std::vector<GpuPlace> &places) = 0;
};

// The target of this library. One object per process, which lives until the process ends; any thread may call it.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const TargetFacts &facts() const = 0;
  // Null if ranks are not on GPUs.
  virtual GpuLocator *gpus() { return nullptr; }
  // Writes the device that ncclCommCuDevice reports for this thread's current device.
  virtual Status current_device(int *device) = 0;
  // Makes `device` current for this thread (ncclCommInitAll's list).
  virtual Status use_device(int device) = 0;
  // Returns the bytes that a communicator needs in the shared segment besides the control area.
  virtual uint64_t shared_bytes(const Tables &tables, const Placement &placement) const = 0;
  // Makes the state of a rank. Collective: blocks until all ranks of the communicator call it, or one fails.
  virtual Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) = 0;
  // Returns why the calls of one group cannot begin. Comes before any of them is counted or published: a refused group changes
  // nothing.
  virtual Status admit(const std::vector<Submission> &batch) = 0;
  virtual Status admit_one(const Submission &submission) = 0;
  // Runs the calls of one group by this thread: the collectives of each rank in order, its transfers and the calls of other
  // ranks beside them. Sets the status of each. Host: blocks until their buffers are done. CUDA: returns when they are on their
  // streams.
  virtual void run(std::vector<Submission> &batch) = 0;
  // The same for one call outside of a group.
  virtual void run_one(Submission &submission) = 0;
  // Returns memory for buffers (ncclMemAlloc); null if there is none.
  virtual void *allocate(size_t bytes) = 0;
  virtual Status release(void *memory) = 0;
};

// Returns the backend of this library.
Backend &backend();

}  // namespace collc
