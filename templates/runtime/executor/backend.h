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

// The data of a check of links (communicator/link_check.h): two buffers that calls can send from and receive into.
class Workbench {
 public:
  virtual ~Workbench() = default;
  virtual void *buffer(bool sends) = 0;
  virtual cudaStream_t stream() = 0;
  // Copy between the host and a buffer.
  virtual Status put(bool sends, const void *from, uint64_t bytes) = 0;
  virtual Status get(void *to, uint64_t bytes) = 0;
  // Blocks until the work on the stream is done. Fails after `seconds`, or when the communicator breaks.
  virtual Status wait(double seconds) = 0;
};

// The backend's state of one rank. It is destroyed only while no call runs.
class RankBackend {
 public:
  virtual ~RankBackend() = default;
  // Returns the times of all calls so far, by channel; empty unless COLLC_BREAKDOWN was set at creation and the backend
  // counts (CUDA: if its kernels were built to count).
  virtual std::vector<ChannelTimes> times() const { return {}; }
  // Returns the protocol of a call of a program, as the tables number it. `bytes`: count times the element size.
  virtual uint32_t protocol_of(const Program &program, uint64_t) const { return program.protocol; }

  // Changes the choice of programs by what the backend knows of the machine; equal on all ranks.
  virtual void adapt(Choices *) {}
  // Returns the program that a call of `bytes` bytes runs at present: `program`, or the one that may run in its place
  // (Choices::widen).
  virtual const Program &chosen(const Program &program, const Program &, uint64_t) const { return program; }
  // Returns whether the backend can run a program for a call, or for any call if it is null; equal on all ranks. It can run
  // at least one program of each collective.
  virtual bool can_run(const Program &, const Call *) const { return true; }

  // Announces that calls will use this memory. `seconds`: how long to wait until other ranks have prepared for it, if that
  // takes time.
  virtual void offer_buffer(const void *, uint64_t, double) {}
  // Announce a buffer, and withdraw it: between ncclCommRegister and ncclCommDeregister.
  virtual void register_buffer(const void *, uint64_t) {}
  virtual void withdraw_buffer(const void *) {}
  // For a check of links: creates buffers of `bytes` bytes each. Null if calls take any memory and have ended when they
  // return.
  virtual Status make_workbench(uint64_t, std::unique_ptr<Workbench> *) { return {}; }
  // Returns whether a send or receive with this peer is possible unless both are in one group.
  virtual bool may_transfer(uint32_t) const { return true; }
  // Reads `bytes` at an address of the peer in the way in which its chunks are read. Returns false if chunks are never read
  // in this way.
  virtual bool read_address(uint32_t, uint64_t, void *, uint64_t, Status *) { return false; }
  // Returns whether a call of this rank may still run after its function has returned.
  virtual bool has_calls() const { return false; }
  // Blocks until the calls of an aborted communicator have ended; they end soon, whatever is before them on their streams.
  virtual void wait_for_calls_that_end() {}
  // Returns the bytes of GPU memory that belong to the communicator.
  virtual uint64_t gpu_bytes() const { return 0; }
  // Gives all split calls these weights of path classes from now on; class_times() then reports their times. All ranks must
  // call it, while no call runs.
  virtual void force_weights(uint32_t) {}
  // A path class has failed: calls that no rank has begun yet run without it, on all ranks. Returns false if this is known,
  // or the target has no classes.
  virtual bool lose_class(uint32_t, const std::string &) { return false; }
  // Sets the times, in ns since the begin of the latest call here, when each class had done its part; 0 if it carried
  // nothing. Returns false if they are unknown.
  virtual bool class_times(uint64_t (&)[kClasses]) { return false; }
  // Limits waits for data, in seconds, from now on; 0 restores the old limit. COLLC_TIMEOUT has precedence.
  virtual void limit_waits(double) {}
};

// One call and the rank that makes it.
struct Submission {
  RankBackend *rank;
  Call call;
  Status status;  // set by Backend::run
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Sets the device that ncclCommCuDevice reports for this thread's current device.
  virtual Status current_device(int *device) = 0;
  // Makes `device` current for this thread (for the list of ncclCommInitAll).
  virtual Status use_device(int device) = 0;
  // The number of calls by which one rank may be ahead of another, at most; a power of two; also the size of each rank's call
  // log.
  virtual uint32_t most_ahead() const = 0;
  // The bytes that a communicator needs in the segment, in addition to the control area.
  virtual uint64_t shared_bytes(const Tables &tables, const Placement &placement) const = 0;
  virtual Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) = 0;
  // Returns why the calls of a group cannot begin. Called before any of them is counted or shown to other ranks, so a refused
  // group changes nothing.
  virtual Status admit(const std::vector<Submission> &) { return {}; }
  virtual Status admit_one(const Submission &) { return {}; }
  // Runs the calls of one group on this thread: the collectives of each rank in order, together with its transfers and the
  // calls of other ranks. Sets the status of each. Host: blocks until the buffers are done. CUDA: returns when the calls are
  // on their streams.
  virtual void run(std::vector<Submission> &batch) = 0;
  // Runs one call outside of a group, as run() does.
  virtual void run_one(Submission &submission) {
    std::vector<Submission> batch{submission};
    run(batch);
    submission.status = batch[0].status;
  }
  // Returns whether the backend's call records say when calls end (CallLog::end).
  virtual bool notes_ends() const { return false; }
  // Returns whether the ranks of this target are on GPUs; and the place of the GPU that is this thread's current device.
  virtual bool has_places() const { return false; }
  virtual GpuPlace place_of_device() { return {}; }
  // Returns the distance from the GPU of this thread's current device to each GPU of `places`, as levels of plan/pcie_paths.h.
  virtual std::vector<uint8_t> paths_of_device(const std::vector<GpuPlace> &places) {
    return std::vector<uint8_t>(places.size(), kUnknownPath);
  }
  // Returns whether the kernels of a call read the factor of a scaled sum from memory (ncclScalarDevice); if not, the call
  // reads it when it is made.
  virtual bool reads_factors() const { return false; }
  // Returns the bytes of the largest message in a check of links; and whether speeds measured inside a server are the speeds
  // of the topology's links.
  virtual uint64_t most_checked() const { return 1 << 20; }
  virtual bool measures_links() const { return false; }
  // Returns whether ranks may be on several servers: this library serves them, or the real NCCL would.
  virtual bool may_span_servers() const = 0;
  // Allocates memory for ncclMemAlloc; null if there is none.
  virtual void *allocate(size_t bytes) = 0;
  virtual Status release(void *memory) = 0;
};

// Returns the backend of this library.
Backend &backend();

}  // namespace collc
