// The CUDA target: turns the calls of a group into launches and copies on the callers' streams.
#include "executor/backend.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "collc/collective_traits.h"
#include "cuda/rank.h"
#include "base/element.h"

namespace collc {
namespace cuda {
namespace {

CudaRank &rank_of(const Submission &submission) { return *static_cast<CudaRank *>(submission.rank); }

Stream stream_of(const Submission &submission) { return submission.call.stream; }

Address address(const void *pointer) { return reinterpret_cast<Address>(pointer); }

// How a call is put to the kernels. What only moves data runs as the sum of a type of that size.
Status reducing_of(const Call &call, Reducing *how) {
  auto type = static_cast<uint32_t>(call.type);
  if (!traits(call.collective).reduces) {
    switch (element_bytes(call.type)) {
      case 1:
        type = 1;
        break;
      case 2:
        type = 6;
        break;
      case 4:
        type = 3;
        break;
      default:
        type = 5;
        break;
    }
    *how = reducing(type, 0);
  } else if (type >= kTypes) {
    return fail(ncclInvalidArgument, "reductions of 8-bit floats are not in the CUDA target");
  } else {
    *how = reducing(type, static_cast<uint32_t>(call.op.kind));
  }
  return {};
}

// Calls of ranks that share a device, in one launch.
using Together = std::vector<Submission *>;

// Runs `body` after the work on all streams of the calls and makes what follows on any of them wait for it.
template <class Body>
Status between_streams(const Together &calls, Body body) {
  const Driver &cu = driver();
  const Stream main = stream_of(*calls[0]);
  std::vector<Stream> joined = {main};
  for (Submission *submission : calls) {
    COLLC_RETURN_IF_FAILED(rank_of(*submission).follow_earlier(main));
    const Stream stream = stream_of(*submission);
    if (std::find(joined.begin(), joined.end(), stream) != joined.end()) continue;
    joined.push_back(stream);
    const Event ready = rank_of(*submission).ready();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(ready, stream), "recording an event"));
    COLLC_RETURN_IF_FAILED(check(cu.stream_wait(main, ready, 0), "ordering streams"));
  }
  COLLC_RETURN_IF_FAILED(body(main));
  if (joined.size() > 1) {
    const Event finished = rank_of(*calls[0]).ready();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(finished, main), "recording an event"));
    for (size_t s = 1; s < joined.size(); ++s)
      COLLC_RETURN_IF_FAILED(check(cu.stream_wait(joined[s], finished, 0), "ordering streams"));
  }
  for (Submission *submission : calls) COLLC_RETURN_IF_FAILED(rank_of(*submission).note_call(main));
  return {};
}

Status launch(const Together &calls) {
  const CudaRank &first = rank_of(*calls[0]);
  const Call &call = calls[0]->call;
  const World &world = *first.world();
  const Driver &cu = driver();
  const Current current(first.device().context);
  const auto program =
      static_cast<uint32_t>(call.program - (first.context().tables->programs + world.allocation().first_program));
  const uint32_t protocol = world.protocol_of(program, call.count * element_bytes(call.type));
  Launch arguments;
  arguments.count = call.count;
  arguments.program = program * kProtocols + protocol;
  arguments.nchannels = world.plan().programs[arguments.program].nchannels;
  arguments.divisor = call.op.average ? world.nranks() : 0;
  Reducing how{};
  COLLC_RETURN_IF_FAILED(reducing_of(call, &how));
  arguments.operation = how.operation;
  arguments.flip = how.flip;
  const Function kernel = first.device().kernel(protocol, how.kernel_type);
  for (size_t i = 0; i < calls.size(); ++i)
    arguments.ranks[i] = {reinterpret_cast<const RankState *>(rank_of(*calls[i]).state()), calls[i]->call.input,
                          calls[i]->call.output};
  void *parameters[] = {&arguments};
  const auto blocks = static_cast<uint32_t>(calls.size()) * arguments.nchannels;
  const uint32_t threads = first.threads(), shared = shared_bytes(call.program->nshares);
  return between_streams(calls, [&](Stream stream) {
    return check(calls.size() == 1 ? cu.launch(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr)
                                   : cu.launch_cooperative(kernel, blocks, 1, 1, threads, 1, 1, shared, stream, parameters),
                 "launching a collective");
  });
}

// A communicator of one rank: its results are its inputs.
Status copy_alone(Submission &submission) {
  const Call &call = submission.call;
  if (call.input == call.output) return {};
  const Current current(rank_of(submission).device().context);
  return check(driver().copy_async(address(call.output), address(call.input), call.count * element_bytes(call.type),
                                   submission.call.stream),
               "copying");
}

Status copy_between(Submission &send, Submission &receive) {
  if (send.call.signature != receive.call.signature)
    return rank_of(send).refuse(fail(ncclInvalidUsage, "calls differ: rank %u is in %s; rank %u is in %s", rank_of(send).rank(),
                                     describe_call(send.call.what, send.call.count).c_str(), rank_of(receive).rank(),
                                     describe_call(receive.call.what, receive.call.count).c_str()));
  const Current current(rank_of(send).device().context);
  const size_t bytes = send.call.count * element_bytes(send.call.type);
  return between_streams({&send, &receive}, [&](Stream stream) {
    return check(driver().copy_async(address(receive.call.output), address(send.call.input), bytes, stream), "copying");
  });
}

Status check_call(const Call &call) {
  if (call.op.scaled && traits(call.collective).reduces)
    return fail(ncclInvalidUsage, "sums with a factor (ncclRedOpCreatePreMulSum) are not in the CUDA target");
  return {};
}

// The group's transfers: a send goes with the first free receive of its peer.
void run_transfers(std::vector<Submission> &batch) {
  std::vector<bool> taken(batch.size());
  const auto same_world = [](const Submission &a, const Submission &b) {
    return rank_of(a).context().segment == rank_of(b).context().segment;
  };
  for (Submission &send : batch) {
    if (send.call.work != Work::kSend) continue;
    size_t r = 0;
    while (r < batch.size() && (taken[r] || batch[r].call.work != Work::kReceive || !same_world(send, batch[r]) ||
                                rank_of(batch[r]).rank() != send.call.peer || batch[r].call.peer != rank_of(send).rank()))
      ++r;
    if (r == batch.size()) {
      send.status =
          fail(ncclInvalidUsage,
               "rank %u sends to rank %u: on the CUDA target both ends of a transfer must be in one group of one thread",
               rank_of(send).rank(), send.call.peer);
      continue;
    }
    taken[r] = true;
    send.status = copy_between(send, batch[r]);
    batch[r].status = send.status;
  }
  for (size_t r = 0; r < batch.size(); ++r)
    if (batch[r].call.work == Work::kReceive && !taken[r])
      batch[r].status =
          fail(ncclInvalidUsage,
               "rank %u receives from rank %u: on the CUDA target both ends of a transfer must be in one group of one thread",
               rank_of(batch[r]).rank(), batch[r].call.peer);
}

// The calls with the same number of one communicator, one launch per device.
Status run_round(const Together &round) {
  for (const Submission *other : round) {
    CudaRank &first = rank_of(*round[0]);
    const Status differs = first.context().segment->compare(first.rank(), rank_of(*other).rank());
    if (!differs.ok()) return first.refuse(differs);
  }
  std::vector<Together> launches;
  for (Submission *submission : round) {
    const auto same = [&](const Together &t) { return &rank_of(*t[0]).device() == &rank_of(*submission).device(); };
    const auto found = std::find_if(launches.begin(), launches.end(), same);
    if (found == launches.end())
      launches.push_back({submission});
    else
      found->push_back(submission);
  }
  for (const Together &calls : launches) {
    const CudaRank &first = rank_of(*calls[0]);
    const uint32_t sharing = first.world()->ranks_on(&first.device());
    if (calls.size() != sharing)
      return fail(ncclInvalidUsage, "%u ranks of this process share GPU %d and must make their calls in one group", sharing,
                  first.device().number);
  }
  for (const Together &calls : launches) COLLC_RETURN_IF_FAILED(launch(calls));
  return {};
}

class CudaBackend final : public Backend {
 public:
  Status current_device(int *device) override { return current_number(device); }
  Status use_device(int device) override { return make_current(device); }
  // More than a GPU takes launches that have not begun.
  uint32_t most_ahead() const override { return 2048; }
  uint64_t shared_bytes(const Tables &, const Placement &placement) const override {
    return (placement.nccl_rank.size() + 1) * kLine;
  }
  Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) override { return CudaRank::open(context, rank); }
  void run(std::vector<Submission> &batch) override;
  bool may_span_servers() const override { return true; }
  void *allocate(size_t bytes) override {
    const Driver *cu = nullptr;
    Address at = 0;
    if (!load_driver(&cu).ok() || cu->allocate(&at, bytes) != 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    allocated_.insert(at);
    return reinterpret_cast<void *>(at);
  }
  Status release(void *memory) override {
    if (memory == nullptr) return {};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (allocated_.erase(address(memory)) == 0)
        return fail(ncclInvalidArgument, "%p is not where a buffer of ncclMemAlloc begins, or was freed before", memory);
    }
    return check(driver().release(address(memory)), "freeing GPU memory");
  }

 private:
  std::mutex mutex_;
  std::set<Address> allocated_;  // by ncclMemAlloc
};

void CudaBackend::run(std::vector<Submission> &batch) {
  bool sound = true;
  for (Submission &submission : batch) {
    rank_of(submission).note(submission.call);
    submission.status = check_call(submission.call);
    sound &= submission.status.ok();
  }
  // Half a group on the streams would leave its other ranks waiting.
  if (!sound) return;
  std::map<std::pair<Segment *, uint64_t>, Together> rounds;  // by communicator, in the order of its calls
  for (Submission &submission : batch) {
    if (submission.call.work != Work::kProgram) continue;
    if (submission.call.program == nullptr)
      submission.status = copy_alone(submission);
    else
      rounds[{rank_of(submission).context().segment.get(), submission.call.number}].push_back(&submission);
  }
  for (auto &[key, round] : rounds) {
    const Status status = run_round(round);
    for (Submission *submission : round) submission->status = status;
  }
  run_transfers(batch);
}

}  // namespace
}  // namespace cuda

Backend &backend() {
  static auto *const only = new cuda::CudaBackend;  // outlives every thread
  return *only;
}

}  // namespace collc
