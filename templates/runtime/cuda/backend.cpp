// The CUDA target: turns the calls of a group into launches and copies on the callers' streams.
#include "executor/backend.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>

#include "collc/collective_traits.h"
#include "cuda/alone.h"
#include "cuda/copy_engines.h"
#include "cuda/launches.h"
#include "cuda/lending.h"
#include "cuda/nvml.h"
#include "cuda/rank.h"
#include "cuda/rank_tables.h"
#include "cuda/wire_halves.h"
#include "base/element.h"

namespace collc {
namespace cuda {
namespace {

// How a call is put to the kernels. What only moves data runs as the sum of a type of that size.
Reducing reducing_of(const Call &call) {
  if (traits(call.collective).reduces) return reducing(static_cast<uint32_t>(call.type), static_cast<uint32_t>(call.op.kind));
  switch (element_bytes(call.type)) {
    case 1:
      return reducing(ncclUint8, ncclSum);
    case 2:
      return reducing(ncclFloat16, ncclSum);
    case 4:
      return reducing(ncclUint32, ncclSum);
    default:
      return reducing(ncclUint64, ncclSum);
  }
}

Scaling scaling_of(const Operation &op) {
  if (!op.has_scale) return Scaling::kNone;
  return op.scale_address == nullptr ? Scaling::kByValue : Scaling::kInMemory;
}

uint64_t factor_of(const Operation &op) {
  uint64_t bits = reinterpret_cast<uint64_t>(op.scale_address);
  if (op.scale_address == nullptr) std::memcpy(&bits, op.scale, sizeof bits);
  return bits;
}

Status launch(const Together &calls) {
  CudaRank &first = rank_of(*calls[0]);
  const Call &call = calls[0]->call;
  const World &world = *first.world();
  const Current current(first.device().context);
  const auto program =
      static_cast<uint32_t>(call.program - (first.context().tables->programs + world.allocation().first_program));
  const uint32_t protocol = world.protocol_of(program, bytes_of(call));
  Launch arguments;
  arguments.count = call.count;
  const uint32_t row = program * kProtocols + protocol;
  put_program(world.plan().programs[row], row, places_of(world.plan(), row), world.plan().caches_row(row), &arguments);
  arguments.most_slots = world.plan().slots;
  arguments.timeout_ns = first.context().timeout_ns();
  arguments.divisor = call.op.is_average && !call.op.has_scale ? world.nranks() : 0;
  const Reducing how = reducing_of(call);
  arguments.operation = static_cast<uint8_t>(how.operation);
  arguments.flip = how.flip;
  arguments.scaling = scaling_of(call.op);
  bool timed = false;
  for (const Submission *one : calls)  // each counts its calls, and all come to the same
    arguments.weights = rank_of(*one).path_classes()->start(one->call, row, &timed);
  arguments.timed = timed ? static_cast<uint32_t>(call.number) : 0;
  Function kernel = first.device().kernel(protocol, how.kernel_type);
  const Function written = first.device().written_kernel(protocol, how.kernel_type);
  const bool sums = how.operation == static_cast<uint32_t>(ncclSum);
  if (written != nullptr && sums && is_written(world.plan(), row)) kernel = written;
  // Readers look at every chunk of these for where it lies, so they run on all ranks of this process or on none. They give up
  // the written-out steps, so on none where no chunk can travel by address.
  const bool direct = protocol == kSimple && first.buffers()->runs_direct();
  if (direct) kernel = first.device().direct[how.kernel_type];
  if (world.plan().in_switch[program]) kernel = first.device().in_switch[how.kernel_type];
  const bool lends = direct && arguments.scaling == Scaling::kNone;
  // The free words of the arguments are for exported buffers, in equal parts for the ranks.
  const auto nranks = static_cast<uint32_t>(calls.size()), room = (kMaxLaunchRanks - nranks) * kCallWords / nranks;
  for (uint32_t i = 0; i < nranks; ++i) {
    const Call &one = calls[i]->call;
    CudaRank &rank = rank_of(*calls[i]);
    arguments.ranks[i] = {
        rank.memory().state(), one.input, one.output,
        lends ? rank.buffers()->lend(one, arguments.words, nranks * kCallWords + i * room, room) : factor_of(one.op)};
  }
  void *parameters[] = {&arguments};
  const auto blocks = static_cast<uint32_t>(calls.size()) * arguments.nchannels;
  const Grid grid = {kernel, blocks, first.async_calls()->threads(), world.plan().shared_bytes_of(row), calls.size() > 1};
  return between_streams(calls, [&](const MainStream &main) {
    return first.async_calls()->launch(grid, main.stream, main.place, parameters, "launching a collective");
  });
}

// Launches a scaled sum of a communicator of one rank.
Status scale_alone(Submission &submission) {
  CudaRank &rank = rank_of(submission);
  const Call &call = submission.call;
  const Current current(rank.device().context);
  const Reducing how = reducing_of(call);
  Launch arguments = {};
  arguments.count = call.count;
  put_program(alone_program(), 0, alone_places(), false, &arguments);
  arguments.operation = static_cast<uint8_t>(how.operation);
  arguments.flip = how.flip;
  arguments.scaling = scaling_of(call.op);
  arguments.ranks[0] = {rank.memory().state(), call.input, call.output, factor_of(call.op)};
  void *parameters[] = {&arguments};
  return between_streams({&submission}, [&](const MainStream &main) {
    return check(
        driver().launch(rank.device().kernel(kSimple, how.kernel_type), kAloneChannels, 1, 1, rank.async_calls()->threads(), 1,
                        1, shared_bytes(kAloneChannels), main.stream, parameters, nullptr),
        "launching a sum with a factor");
  });
}

// A communicator of one rank: its results are its inputs, times the factor of the sum.
Status run_alone(Submission &submission) {
  const Call &call = submission.call;
  if (call.op.has_scale && traits(call.collective).reduces) return scale_alone(submission);
  if (call.input == call.output) return {};
  const Current current(rank_of(submission).device().context);
  return check(driver().copy_async(address(call.output), address(call.input), bytes_of(call), submission.call.stream),
               "copying");
}

// The calls with the same number of one communicator, one launch per device.
Status run_round(const Together &round) {
  for (const Submission *other : round) {
    CudaRank &first = rank_of(*round[0]);
    const Status differs = first.context().segment->compare(first.context().rank, rank_of(*other).context().rank);
    if (differs.ok()) continue;
    first.end(differs);
    return differs;
  }
  std::vector<PathShares *> ranks;
  std::vector<const Call *> all;
  for (const Submission *submission : round) {
    ranks.push_back(rank_of(*submission).path_classes());
    all.push_back(&submission->call);
  }
  agree_on_weights(ranks, all);
  Status copied;
  if (run_by_copies(round, &copied)) return copied;
  std::vector<Together> launches;
  for (Submission *submission : round) {
    const auto same = [&](const Together &t) { return &rank_of(*t[0]).device() == &rank_of(*submission).device(); };
    const auto found = std::find_if(launches.begin(), launches.end(), same);
    if (found == launches.end())
      launches.push_back({submission});
    else
      found->push_back(submission);
  }
  for (const Together &calls : launches) COLLC_RETURN_IF_FAILED(launch(calls));
  return {};
}

class CudaBackend final : public Backend, public GpuLocator {
 public:
  Status current_device(int *device) override { return current_number(device); }
  Status use_device(int device) override { return make_current(device); }
  const TargetFacts &facts() const override { return facts_; }
  GpuLocator *gpus() override { return this; }
  // If the driver or the GPU is missing, open() returns the error.
  GpuPlace place_of_device() override {
    const Driver *cu = nullptr;
    int number = 0;
    DeviceNumber device = 0;
    const bool there = load_driver(&cu).ok() && current_number(&number).ok() && cu->device_get(&device, number) == 0;
    return there ? find_place(device) : GpuPlace{};
  }
  std::vector<uint8_t> paths_of_device(const std::vector<GpuPlace> &places) override {
    return find_paths(place_of_device(), places);
  }
  uint64_t shared_bytes(const Tables &tables, const Placement &placement) const override {
    return segment_bytes(tables, placement);
  }
  Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) override { return CudaRank::open(context, rank); }
  Status admit(const std::vector<Submission> &batch) override;
  Status admit_one(const Submission &submission) override { return admit({submission}); }
  void run(std::vector<Submission> &batch) override;
  void run_one(Submission &submission) override {
    std::vector<Submission> batch{submission};
    run(batch);
    submission.status = batch[0].status;
  }
  void *allocate(size_t bytes) override { return allocate_buffer(bytes); }
  Status release(void *memory) override { return release_buffer(memory); }

 private:
  // The calls ahead are more than the launches that a GPU takes before they begin.
  const TargetFacts facts_ = {2048, false, true, true, true, 16 << 20};
};

// Ranks that share a GPU share its launches. Otherwise kernels of one rank would wait for kernels of another that never start.
Status check_sharing(const std::vector<Submission> &batch) {
  struct Calls {
    uint32_t all = 0, with_factor_in_memory = 0;
  };
  std::map<std::pair<const World *, uint64_t>, std::map<const Device *, Calls>> rounds;
  std::map<const CudaRank *, uint64_t> numbers;  // of their collectives in this group
  for (const Submission &submission : batch) {
    if (submission.call.work != Work::kProgram || submission.call.program == nullptr) continue;
    const CudaRank &rank = rank_of(submission);
    Calls &calls = rounds[{rank.world().get(), numbers[&rank]++}][&rank.device()];
    ++calls.all;
    if (scaling_of(submission.call.op) == Scaling::kInMemory) ++calls.with_factor_in_memory;
  }
  for (const auto &[round, devices] : rounds)
    for (const auto &[device, calls] : devices) {
      if (const uint32_t sharing = round.first->ranks_on(device); calls.all != sharing)
        return fail(ncclInvalidUsage, "%u ranks of this process share GPU %d and must make their calls in one group", sharing,
                    device->number);
      if (calls.with_factor_in_memory % calls.all != 0)
        return fail(ncclInvalidUsage,
                    "ranks that share GPU %d must all give the factor of a sum by value, or all in memory (ncclScalarDevice)",
                    device->number);
    }
  return {};
}

Status CudaBackend::admit(const std::vector<Submission> &batch) {
  COLLC_RETURN_IF_FAILED(check_sharing(batch));
  return check_transfers(batch);
}

void CudaBackend::run(std::vector<Submission> &batch) {
  for (Submission &submission : batch) rank_of(submission).peers().note(submission.call);
  // By communicator, in the order of its calls. Communicators come in an order that is the same on all ranks, or two ranks
  // with both on one stream would wait for each other.
  std::map<std::tuple<uint64_t, Segment *, uint64_t>, Together> rounds;
  for (Submission &submission : batch) {
    if (submission.call.work != Work::kProgram) continue;
    if (submission.call.program == nullptr)
      submission.status = run_alone(submission);
    else
      rounds[{rank_of(submission).context().order, rank_of(submission).context().segment.get(), submission.call.number}]
          .push_back(&submission);
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
