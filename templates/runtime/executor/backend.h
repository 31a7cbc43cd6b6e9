// The seam between the NCCL API and what runs a step program. A library holds exactly one backend (host or CUDA), linked in.
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

// What the backend is told about a rank at creation.
struct RankContext {
  const Tables *tables;
  Placement placement;
  std::shared_ptr<Segment> segment;  // its memory() has Backend::shared_bytes()
  uint32_t nranks;
  uint32_t rank;   // NCCL rank
  uint64_t order;  // among the communicators of a group, the same on all ranks
  uint32_t cores;  // CPU cores that the ranks may use, all together
  uint32_t most_channels = 0;  // maxCTAs of the configuration; 0: as many as the tables say
  std::vector<uint32_t> weights;  // of classes of links by program of the allocation, where COLLC_TUNING has any
  double timeout;  // seconds a data wait may take; 0: no limit
  uint32_t here = 0;  // ranks on this machine
  bool only_host_memory = false;  // GPUs of this rank and others do not read each other's memory, by the user's wish
  bool orders_launches = false;   // kernels of one GPU begin in the order of their calls, by the user's wish
  NvLinks links;      // between the GPUs of the ranks
  std::vector<uint64_t> processes;  // a number of its process for each rank
  std::string secret;               // that only the ranks know
  double seconds = 0;               // that creation may wait for others
  Exchange exchange;  // collective among the ranks of the communicator, while it is made
  // Tells the others that this rank has failed, where they wait for it outside of an exchange; ends the creation.
  std::function<void(const Status &)> give_up;
  // True when the communicator is being aborted by this process.
  std::function<bool()> stopped;
  // The same, or the other ranks cannot be reached any more; while it is made.
  std::function<bool()> gone;
};

// What `outcome` comes to where ranks wait for each other outside of exchanges: a failure ends the creation for all of them, unless
// that has happened, and then the exchange says why.
inline Status end_creation(const RankContext &context, const Status &outcome) {
  if (outcome.ok()) return outcome;
  std::vector<Bytes> none;
  if (context.gone()) COLLC_RETURN_IF_FAILED(context.exchange({}, &none));
  context.give_up(outcome);
  return outcome;
}

// Where the time of a channel's calls went, in nanoseconds.
struct ChannelTimes {
  uint64_t waiting = 0;  // for chunks, for free slots, for a turn beside other channels and ranks of the thread
  uint64_t copying = 0;
  uint64_t reducing = 0;
};

// Where a check of links (communicator/link_check.h) has its data: two buffers that calls can send from and receive into.
class Workbench {
 public:
  virtual ~Workbench() = default;
  virtual void *buffer(bool sends) = 0;
  virtual cudaStream_t stream() = 0;
  // Between the host and a buffer.
  virtual Status put(bool sends, const void *from, uint64_t bytes) = 0;
  virtual Status get(void *to, uint64_t bytes) = 0;
  // Returns when what is on the stream is done; an error after `seconds`, or when the communicator breaks.
  virtual Status wait(double seconds) = 0;
};

// The backend's state of one rank. Destroyed when no call runs.
class RankBackend {
 public:
  virtual ~RankBackend() = default;
  // By channel, of all calls so far; empty unless COLLC_BREAKDOWN was set at creation and the backend counts: CUDA's kernels
  // do where they were built for it.
  virtual std::vector<ChannelTimes> times() const { return {}; }
  // What a call of `bytes` (count times the element size) of a program runs over, as tables number protocols.
  virtual uint32_t protocol_of(const Program &program, uint64_t) const { return program.protocol; }

  // Changes which programs calls run, by what it knows of the machine; the same on all ranks.
  virtual void adapt(Choices *) {}
  // Of a program and what may run in its place (Choices::widen), the one that a call of `bytes` runs at present.
  virtual const Program &chosen(const Program &program, const Program &, uint64_t) const { return program; }
  // Whether it can run a program for a call (null: for some call); the same on all ranks. A collective has always one.
  virtual bool can_run(const Program &, const Call *) const { return true; }

  // Calls will use this memory. `seconds`: how long to wait until other ranks are ready for it where that takes something.
  virtual void offer_buffer(const void *, uint64_t, double) {}
  // The same for the time from ncclCommRegister to ncclCommDeregister.
  virtual void register_buffer(const void *, uint64_t) {}
  virtual void withdraw_buffer(const void *) {}
  // For a check of links. Buffers of `bytes` each; null where a call takes any memory and is done when it returns.
  virtual Status make_workbench(uint64_t, std::unique_ptr<Workbench> *) { return {}; }
  // Whether a transfer joins this rank with a peer without a call of both in one group.
  virtual bool may_transfer(uint32_t) const { return true; }
  // Reads `bytes` at an address that the peer has told, the way that its chunks are read; false if it never reads so.
  virtual bool read_address(uint32_t, uint64_t, void *, uint64_t, Status *) { return false; }
  // Whether a call of this rank goes on behind its return.
  virtual bool has_calls() const { return false; }
  // Returns when calls of the communicator, which was aborted, have ended; soon, whatever they stand behind.
  virtual void wait_for_calls_that_end() {}
  // Memory of its GPU that it has for the communicator.
  virtual uint64_t gpu_bytes() const { return 0; }
  // From now on the classes of links of all calls that are cut have these weights, and class_times() tells of them: on all
  // ranks, and while no call runs.
  virtual void force_weights(uint32_t) {}
  // A class of links has failed: calls that no rank has begun yet run without it, on all ranks. False if that is known, or the
  // target has no classes.
  virtual bool lose_class(uint32_t, const std::string &) { return false; }
  // When each class had done its part of the latest call, in nanoseconds from when it began here; 0: it carried nothing. False
  // where that is not known.
  virtual bool class_times(uint64_t (&)[kClasses]) { return false; }
  // How long a wait for data may take from now on, unless COLLC_TIMEOUT says it; 0: as before.
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
  // The device that ncclCommCuDevice reports for this thread's current device.
  virtual Status current_device(int *device) = 0;
  // Makes `device` current for this thread (ncclCommInitAll's list).
  virtual Status use_device(int device) = 0;
  // At most this many calls one rank may be ahead of another, a power of two; also the capacity of each rank's call log.
  virtual uint32_t most_ahead() const = 0;
  // Bytes that a communicator needs in the shared segment beside the control area.
  virtual uint64_t shared_bytes(const Tables &tables, const Placement &placement) const = 0;
  virtual Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) = 0;
  // Why the calls of one group cannot begin, before any of them is counted or told to other ranks: a refused group changes
  // nothing.
  virtual Status admit(const std::vector<Submission> &) { return {}; }
  virtual Status admit_one(const Submission &) { return {}; }
  // Runs the calls of one group by this thread: the collectives of one rank in order, its transfers and the calls of other
  // ranks beside them.
  // Sets the status of each. Host: returns when their buffers are done. CUDA: returns when they are on their streams.
  virtual void run(std::vector<Submission> &batch) = 0;
  // The same for one call outside of a group.
  virtual void run_one(Submission &submission) {
    std::vector<Submission> batch{submission};
    run(batch);
    submission.status = batch[0].status;
  }
  // True if its call records say when calls end (CallLog::end).
  virtual bool notes_ends() const { return false; }
  // Whether the ranks of this target are on GPUs, and where the one of this thread's current device is.
  virtual bool has_places() const { return false; }
  virtual GpuPlace place_of_device() { return {}; }
  // Returns the distance from the GPU of this thread's current device to each GPU of `places`, as levels of plan/pcie_paths.h.
  virtual std::vector<uint8_t> paths_of_device(const std::vector<GpuPlace> &places) {
    return std::vector<uint8_t>(places.size(), kUnknownPath);
  }
  // Whether factors of scaled sums that lie in memory (ncclScalarDevice) are read by the kernels of a call; else when it is made.
  virtual bool reads_factors() const { return false; }
  // Bytes of the largest message with which a check of links measures, and whether what it measures inside of a server is the
  // speed of the topology's links.
  virtual uint64_t most_checked() const { return 1 << 20; }
  virtual bool measures_links() const { return false; }
  // True if ranks may be on several servers: this library serves them, or the real NCCL takes them.
  virtual bool may_span_servers() const = 0;
  // Memory for buffers (ncclMemAlloc); null if there is none.
  virtual void *allocate(size_t bytes) = 0;
  virtual Status release(void *memory) = 0;
};

Backend &backend();

}  // namespace collc
