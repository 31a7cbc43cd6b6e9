// A C interface for the tests: runs a sequence of collective calls on virtual GPUs.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "cuda/lane_ends.h"
#include "cuda/lending.h"
#include "cuda/rank_tables.h"
#include "emulator.h"
#include "kernels.h"

using namespace collc::cuda;

emulation::Emulator &emulation::emulator() {
  static Emulator only(size_t{64} << 20);
  return only;
}

namespace {

using emulation::Kernel;

constexpr uint32_t kAllPairs = 0xffffffff;

const char *const kPrefixes[] = {"simple_", "ll_", "ll128_"};  // of the kernels of a protocol

// The kernel that a prefix has for a reduction such as "max_i32", put to it as the host side does; null if there is none.
Kernel find_kernel(const std::string &prefix, const std::string &reduction, Reducing *how) {
  static const char *const kOperations[] = {"sum", "prod", "max", "min"};
  static const char *const kTypeNames[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
  static const char *const kKernelNames[] = {"u8", "u32", "u64", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
  const std::string op = reduction.substr(0, reduction.find('_')), type_name = reduction.substr(op.size() + 1);
  uint32_t operation = 0, type = 0;
  while (operation < 3 && op != kOperations[operation]) ++operation;
  while (type < kTypes && type_name != kTypeNames[type]) ++type;
  if (type == kTypes) return nullptr;
  *how = reducing(type, operation);
  return emulation::kernel_named(prefix + kKernelNames[how->kernel_type]);
}

constexpr uint32_t kMostChannels = 32;  // whose ticks are handed over
constexpr uint32_t kNumbers = sizeof(ChannelTicks) / sizeof(uint64_t);

}  // namespace

extern "C" {

struct EmulatedCall {
  const char *kernel;
  uint64_t count;
  uint32_t program;
  uint32_t divisor;
  // Per rank: bytes before the buffers in their allocation (misplacement), sizes, data in and out.
  const uint64_t *input_bytes;
  const uint64_t *output_bytes;
  const void *const *inputs;
  void *const *outputs;      // initial contents of the output buffers; the results at the end
  uint32_t misplacement;     // offset of every buffer from 16-byte alignment, in bytes
  uint32_t in_place;         // input and output share memory: in_offset[r] is where the input lies in the output
  const int64_t *in_offset;  // bytes; used when in_place
  const int64_t *out_offset;  // where the result goes in the output, in bytes
  const uint64_t *factors;    // per rank, the bits of a scaled sum's factor; null: none
  uint32_t factors_in_memory;  // of the GPU
  uint32_t weights;            // of the classes of links
  const uint64_t *lent;        // per rank, which buffers others may read (kLent...); null: other kernels run
};

struct EmulatedRun {
  uint64_t seed;
  uint32_t resident;
  uint32_t report_races;
  uint32_t threads;
  uint32_t one_device;  // all ranks in one cooperative launch
  uint64_t abort_at;
  uint64_t timeout_ns;
  uint32_t missing_rank;  // a rank that does not run at all; 0xffffffff: none
  uint32_t protocol;      // the protocol of every program; 0xffffffff: the table's
  uint32_t chunk_bytes;   // of every program; 0: the table's
  uint32_t channels;      // at most; 0: the table's
  uint32_t ncalls;
  const EmulatedCall *calls;
  uint32_t *report;  // per rank: state, peer rank, channel, step of the first report
  uint64_t switches;
  uint64_t *ticks;  // per rank and channel, kMostChannels per rank: ChannelTicks
  uint32_t late_rank;  // comes a second after all others have begun to wait; 0xffffffff: none
  uint32_t pinned_pairs;  // a seed that selects the pairs with pinned memory between them; 0: none, kAllPairs: all
  uint32_t written;       // calls that kernels with written-out steps have run
  uint32_t slots_between;  // not 0: ranks of even and of odd numbers do not read each other's buffers
  uint32_t processes;      // a seed that selects ranks in other processes, and their mappings in each call; 0: none
};

// Returns 0, or 1 with `message` saying what went wrong.
int collc_emulate(const collc::Tables *tables, EmulatedRun *run, char *message, size_t message_bytes);

// Three ranks that send each other messages of `bytes`, `messages` per pair and direction over two launches.
int collc_emulate_exchange(uint64_t seed, uint32_t report_races, uint32_t bytes, uint32_t messages, uint32_t wrong_size,
                           char *message, size_t message_bytes);

// Runs a block of two warps. One lane waits for another lane, in its warp or in the other warp.
int collc_emulate_waiting_lane(uint64_t seed, uint32_t own_warp, char *message, size_t message_bytes);
}

namespace {

struct Buffers {
  std::vector<char *> input, output;
  std::vector<char *> result;  // within the output
};

char *place_buffer(uint64_t bytes, uint32_t misplacement, const void *data) {
  char *at = emulation::emulator().allocate(bytes + misplacement, 256, data != nullptr) + misplacement;
  if (data != nullptr) std::memcpy(at, data, bytes);
  return at;
}

// FIFOs that network cards join: both halves of one are the same memory here, so the courier between them is at once.
class Cards {
 public:
  void add(uint32_t fifo, const DevicePlan &plan) {
    const size_t bytes = kSlots + size_t{plan.slots} * plan.wired_bytes;
    halves_[fifo] = emulation::emulator().allocate(bytes, 4096, false);
  }
  HalfPlaces fifo(const EndPlace &end, uint32_t) const {
    const auto at = reinterpret_cast<uint64_t>(halves_.at(end.fifo));
    return {at + kSlots, at, at + kFlagBytes, at + 2 * kFlagBytes};
  }
  HalfPlaces queue(uint32_t, uint32_t) const { return {}; }

 private:
  static constexpr size_t kSlots = 4096;
  std::map<uint32_t, char *> halves_;
};

// One communicator on virtual GPUs.
class World {
 public:
  World(const collc::Tables &tables, EmulatedRun &run) : run_(run) {
    collc::Overrides overrides;
    if (run.protocol < kProtocols) overrides.protocol = static_cast<int32_t>(run.protocol);
    overrides.chunk_bytes = run.chunk_bytes;
    overrides.channels = run.channels;
    std::mt19937_64 random(run.pinned_pairs);
    collc::cuda::PinnedPairs pairs;
    for (uint32_t a = 0; run.pinned_pairs != 0 && a < tables.allocations[0].nranks; ++a)
      for (uint32_t b = a + 1; b < tables.allocations[0].nranks; ++b)
        if (run.pinned_pairs == kAllPairs || random() % 2 == 0) pairs.insert({a, b});
    problem_ = make_device_plan(tables, tables.allocations[0], {{}, overrides, true, pairs, {}}, plan_);
    if (!problem_.empty()) return;
    mark_variants(emulation::variants(), plan_.steps, &plan_.channels);
    auto &emulator = emulation::emulator();
    emulator.reset_memory();
    const uint32_t n = plan_.nranks;
    for (uint32_t r = 0; r < n; ++r) {
      arenas_.push_back(emulator.allocate(plan_.arena_bytes[r], 4096, false));
      if (plan_.team_bytes != 0) team_.push_back(emulator.allocate(plan_.team_bytes, 4096, false));
      reports_.emplace_back(plan_.max_channels);
      ticks_.emplace_back(plan_.max_channels);
    }
    for (const PinnedPlan::Region &region : plan_.pinned.regions())
      regions_[{region.low, region.high}] = emulator.allocate(region.bytes, 4096, false);
    Cards cards;
    const std::vector<bool> wired = class_fifos(tables, tables.allocations[0]).wired;
    for (uint32_t f = 0; f < wired.size(); ++f)
      if (wired[f]) cards.add(f, plan_);
    aborts_.assign(n, 0);
    const char *multicast = plan_.team_bytes != 0 ? emulator.make_team(team_, plan_.team_bytes) : nullptr;
    for (uint32_t r = 0; r < n; ++r) {
      const auto arena = [&](uint32_t rank) { return reinterpret_cast<uint64_t>(arenas_[rank]); };
      const auto region = [&](uint32_t peer) { return reinterpret_cast<uint64_t>(regions_.at(std::minmax(r, peer))); };
      TeamAddresses team;
      if (multicast != nullptr) team = {reinterpret_cast<uint64_t>(team_[r]), reinterpret_cast<uint64_t>(multicast)};
      std::vector<FifoEnd> ends(plan_.ends[r].size() * kProtocols);
      plan_.make_ends(r, arena, region, ends.data(), cards, team);
      const auto way = [&](uint32_t peer) { return run.slots_between == 0 || r % 2 == peer % 2 ? way_to(r, peer) : 0; };
      mark_by_address(plan_, r, way, ends.data());
      const RankState state{reports_[r].data(), &aborts_[r], run.timeout_ns, n, ticks_[r].data(), nullptr, 0, nullptr, 0, 0, 0};
      tables_.push_back(make_tables(plan_, r, state, ends));
    }
  }

  std::string go() {
    if (!problem_.empty()) return problem_;
    std::vector<emulation::LaunchRequest> launches;
    launches_.reserve(run_.ncalls * plan_.nranks);  // the requests point into it
    for (uint32_t c = 0; c < run_.ncalls; ++c) {
      const EmulatedCall &call = run_.calls[c];
      Reducing how{};
      const uint32_t protocol = plan_.protocol_of(call.program, 0);
      const bool sums = std::string(call.kernel).rfind("sum_", 0) == 0;
      const bool written = sums && is_written(plan_, call.program * kProtocols + protocol);
      Kernel kernel = written ? find_kernel(std::string("written_") + kPrefixes[protocol], call.kernel, &how) : nullptr;
      run_.written += kernel != nullptr ? 1 : 0;
      if (kernel == nullptr) kernel = find_kernel(own_prefix(call, protocol), call.kernel, &how);
      if (kernel == nullptr) return std::string("no kernel ") + call.kernel;
      buffers_.push_back(make_buffers(call));
      if (run_.one_device) {
        launches.push_back(request(kernel, how, call, 0, plan_.nranks));
      } else {
        for (uint32_t r = 0; r < plan_.nranks; ++r)
          if (r != run_.missing_rank) launches.push_back(request(kernel, how, call, r, r + 1));
      }
      if (call.lent != nullptr && !call.in_place && !run_.one_device)
        for (uint32_t r = 0; r < plan_.nranks; ++r)
          if (call.input_bytes[r] != 0) launches.push_back(overwriting(buffers_.back().input[r], call.input_bytes[r], r));
    }
    emulation::Options options;
    options.seed = run_.seed;
    options.resident = run_.resident;
    options.report_races = run_.report_races != 0;
    options.abort_at = run_.abort_at;
    options.late_stream = run_.late_rank;
    options.lockstep = emulation::lockstep();
    for (uint32_t &flag : aborts_) options.abort_flags.push_back(&flag);
    auto &emulator = emulation::emulator();
    const uint32_t nblocks = plan_.nranks * (plan_.max_channels + 1);
    const std::string failure = emulator.run(options, nblocks, plan_.nranks, std::move(launches));
    run_.switches = emulator.switches();
    collect();
    return failure;
  }

 private:
  std::string own_prefix(const EmulatedCall &call, uint32_t protocol) const {
    if (plan_.in_switch[call.program]) return "in_switch_";
    return call.lent != nullptr && protocol == kSimple ? "direct_" : kPrefixes[protocol];
  }

  // Returns FifoEnd::by_address for ranks in one process or in two. Some processes number their readers by rank.
  uint32_t way_to(uint32_t rank, uint32_t peer) const {
    const bool apart = run_.processes != 0 && (rank ^ run_.processes) % 3 != (peer ^ run_.processes) % 3;
    return kSameAddress + (apart ? 1 + peer : 0);
  }

  // Memory of the emulator has one address in all processes.
  uint64_t lend(const EmulatedCall &call, uint32_t rank, uint32_t first, Launch *launch) {
    const uint64_t lent = call.lent[rank];
    if (run_.processes == 0 || processes_() % 8 == 0) return lent;  // none of the others has mapped anything
    for (uint32_t w = 0; w < 2 * plan_.nranks; ++w) launch->words[first + w] = processes_() % 3 == 0 ? kNotThere : 0;
    return lent | uint64_t{first} << kLentBits;
  }

  // A kernel that a user may run after a call: it overwrites the input.
  emulation::LaunchRequest overwriting(char *input, uint64_t bytes, uint32_t rank) {
    emulation::LaunchRequest request{rank, 1, 0, {plan_.nranks * plan_.max_channels + rank}, {rank}, {}};
    request.body = [input, bytes] {
      const char other = 0x55;
      for (uint64_t i = 0; i < bytes; ++i) emulation::emulator().write(input + i, &other, 1);
    };
    return request;
  }

  Buffers make_buffers(const EmulatedCall &call) {
    Buffers made;
    for (uint32_t r = 0; r < plan_.nranks; ++r) {
      made.output.push_back(place_buffer(call.output_bytes[r], call.misplacement, call.outputs[r]));
      made.result.push_back(made.output[r] + call.out_offset[r]);
      if (call.in_place)
        made.input.push_back(made.output[r] + call.in_offset[r]);
      else
        made.input.push_back(place_buffer(call.input_bytes[r], call.misplacement, call.inputs[r]));
    }
    return made;
  }

  emulation::LaunchRequest request(Kernel kernel, const Reducing &how, const EmulatedCall &call, uint32_t first,
                                   uint32_t last) {
    const uint32_t row = call.program * kProtocols + plan_.protocol_of(call.program, 0);
    const collc::Program &program = plan_.programs[row];
    launches_.push_back({});
    Launch &launch = launches_.back();
    launch.count = call.count;
    const bool cached = run_.seed % 4 != 3 && plan_.caches_row(row);  // every fourth run reads tables where they lie
    put_program(program, row, places_of(plan_, row), cached, &launch);
    launch.most_slots = plan_.slots;
    launch.timeout_ns = run_.timeout_ns;
    launch.operation = static_cast<uint8_t>(how.operation);
    launch.flip = how.flip;
    launch.divisor = call.divisor;
    launch.scaling = Scaling::kNone;
    launch.weights = call.weights;
    if (call.factors != nullptr) launch.scaling = call.factors_in_memory ? Scaling::kInMemory : Scaling::kByValue;
    const uint32_t shared = cached ? plan_.shared_bytes_of(row) : shared_bytes(program.nshares);
    emulation::LaunchRequest request{first, run_.threads, shared, {}, {}, {}};
    const uint32_t here = last - first;
    for (uint32_t r = first; r < last; ++r) {
      const uint32_t words = here * kCallWords + 2 * plan_.nranks * (r - first);
      launch.ranks[r - first] = {reinterpret_cast<const RankState *>(tables_[r].data()), buffers_.back().input[r],
                                 buffers_.back().result[r],
                                 call.lent != nullptr ? lend(call, r, words, &launch) : factor(call, r)};
      for (uint32_t c = 0; c < program.nchannels; ++c) {
        request.ids.push_back(r * plan_.max_channels + c);
        request.devices.push_back(run_.one_device ? 0 : r);
      }
    }
    request.body = [kernel, &launch] { kernel(launch); };
    return request;
  }

  static uint64_t factor(const EmulatedCall &call, uint32_t rank) {
    if (call.factors == nullptr) return 0;
    if (!call.factors_in_memory) return call.factors[rank];
    return reinterpret_cast<uint64_t>(place_buffer(sizeof(uint64_t), 0, &call.factors[rank]));
  }

  void collect() {
    for (uint32_t c = 0; c < buffers_.size(); ++c)
      for (uint32_t r = 0; r < plan_.nranks; ++r)
        std::memcpy(run_.calls[c].outputs[r], buffers_[c].output[r], run_.calls[c].output_bytes[r]);
    for (uint32_t r = 0; r < plan_.nranks; ++r) {
      uint32_t *report = run_.report + 4 * r;
      // The channel that ran out of time stopped the others of its rank: its report is the one that tells.
      for (uint32_t c = 0; c < plan_.max_channels; ++c) {
        if (reports_[r][c].state <= report[0]) continue;
        report[0] = reports_[r][c].state;
        report[1] = plan_.ends[r][reports_[r][c].peer].peer;
        report[2] = c;
        report[3] = reports_[r][c].step;
      }
      for (uint32_t c = 0; c < plan_.max_channels && c < kMostChannels; ++c)
        std::memcpy(run_.ticks + (r * kMostChannels + c) * kNumbers, &ticks_[r][c], sizeof(ChannelTicks));
    }
  }

  EmulatedRun &run_;
  std::mt19937_64 processes_{run_.processes};
  DevicePlan plan_;
  std::string problem_;
  std::vector<char *> arenas_, team_;
  std::map<std::pair<uint32_t, uint32_t>, char *> regions_;  // pinned memory of pairs
  std::vector<std::vector<Report>> reports_;
  std::vector<std::vector<ChannelTicks>> ticks_;
  std::vector<uint32_t> aborts_;
  std::vector<RankTables> tables_;  // whose state comes first
  std::vector<Launch> launches_;
  std::vector<Buffers> buffers_;
};

}  // namespace

int collc_emulate(const collc::Tables *tables, EmulatedRun *run, char *message, size_t message_bytes) {
  World world(*tables, *run);
  const std::string failure = world.go();
  std::snprintf(message, message_bytes, "%s", failure.c_str());
  return failure.empty() ? 0 : 1;
}

int collc_emulate_waiting_lane(uint64_t seed, uint32_t own_warp, char *message, size_t message_bytes) {
  auto &emulator = emulation::emulator();
  emulator.reset_memory();
  auto *flag = reinterpret_cast<uint64_t *>(emulator.allocate(sizeof(uint64_t), 256, true));
  const uint32_t writer = own_warp ? 1 : emulation::kLanes + 1;
  emulation::LaunchRequest request{0, 2 * emulation::kLanes, 0, {0}, {0}, {}};
  request.body = [flag, writer] { emulation::wait_for_lane(flag, writer); };
  emulation::Options options;
  options.seed = seed;
  options.lockstep = emulation::lockstep();
  const std::string failure = emulator.run(options, 1, 1, {request});
  std::snprintf(message, message_bytes, "%s", failure.c_str());
  return failure.empty() ? 0 : 1;
}

namespace {

// Three ranks and their p2p channels. Two of the channels have two small slots each.
class Exchanging {
 public:
  static constexpr uint32_t kRanks = 3, kBytes = 64;

  // Every other seed has some pairs with pinned memory between them.
  Exchanging(uint64_t seed, uint32_t bytes, uint32_t messages, uint32_t wrong_size) : random_(seed) {
    static constexpr std::array<std::pair<uint32_t, uint32_t>, kRanks> kPairs{{{0, 1}, {0, 2}, {1, 2}}};
    collc::cuda::PinnedPairs pairs;
    for (size_t p = 0; p < kPairs.size(); ++p)
      if ((seed >> p & 1) != 0) pairs.insert(kPairs[p]);
    plan_.nranks = kRanks;
    plan_.lanes = {2, 2, kBytes, kRanks};
    plan_.lanes_at.assign(kRanks, 0);
    plan_.pinned = PinnedPlan(kRanks, pairs);
    plan_.pinned.lay_out(plan_.lanes.bytes_in_region());
    auto &emulator = emulation::emulator();
    emulator.reset_memory();
    for (char *&arena : arenas_) arena = emulator.allocate(plan_.lanes.bytes_in_all(), 256, true);
    std::map<std::pair<uint32_t, uint32_t>, char *> regions;
    for (const PinnedPlan::Region &region : plan_.pinned.regions())
      regions[{region.low, region.high}] = emulator.allocate(region.bytes, 256, true);
    for (uint32_t r = 0; r < kRanks; ++r) {
      const auto region = [&](uint32_t peer) { return reinterpret_cast<uint64_t>(regions.at(std::minmax(r, peer))); };
      ends_[r] = make_lane_ends(plan_, r, [&](uint32_t peer) { return reinterpret_cast<uint64_t>(arenas_[peer]); }, region);
      states_[r] = {};
      states_[r].lane_ends = ends_[r].data();
      states_[r].reports = reports_[r];
      states_[r].abort_flag = &aborts_[r];
      states_[r].nranks = kRanks;
      states_[r].nlanes = plan_.lanes.lanes;
      states_[r].lane_slots = plan_.lanes.slots;
      states_[r].lane_bytes = kBytes;
    }
    for (uint32_t from = 0; from < kRanks; ++from)
      for (uint32_t to = 0; to < kRanks; ++to)
        for (uint32_t m = 0; m < messages && from != to; ++m) add(from, to, bytes + 3 * m, m, m == 0 ? wrong_size : 0);
    for (auto &list : lists_) std::shuffle(list.begin(), list.end(), random_);
  }

  std::string go(uint64_t seed, bool report_races) {
    std::vector<emulation::LaunchRequest> requests;
    for (uint32_t r = 0; r < kRanks; ++r)
      for (uint32_t half = 0; half < 2; ++half) requests.push_back(request(r, half));
    emulation::Options options;
    options.seed = seed;
    options.report_races = report_races;
    std::string failure = emulation::emulator().run(options, 2 * kRanks, kRanks, std::move(requests));
    for (uint32_t r = 0; r < kRanks; ++r)
      for (const Report &report : reports_[r])
        if (failure.empty() && report.state == static_cast<uint32_t>(ReportState::kDiffers)) failure = "messages differ";
    for (const Sent &one : sent_)
      if (failure.empty() && std::memcmp(one.from, one.to, one.bytes) != 0) failure = "wrong data";
    return failure;
  }

 private:
  struct Item {
    Message message;
    uint32_t half;
  };
  struct Sent {
    const char *from, *to;
    size_t bytes;
  };

  void add(uint32_t from, uint32_t to, uint32_t bytes, uint32_t number, uint32_t wrong) {
    auto &emulator = emulation::emulator();
    char *source = emulator.allocate(bytes, 256, true), *target = emulator.allocate(bytes, 256, true);
    for (uint32_t i = 0; i < bytes; ++i) source[i] = static_cast<char>(i * 7 + from * 31 + to * 59 + number * 101);
    sent_.push_back({source, target, bytes});
    const uint64_t signature = bytes;
    lists_[from].push_back({{source, bytes, signature, to + kRanks, 1, 0, 0xffffffff}, number % 2});
    lists_[to].push_back({{target, bytes, signature + wrong, from, 0, 0, 0xffffffff}, number % 2});
  }

  // Returns the messages of a rank: between two ranks in the order of their numbers, else in random order.
  emulation::LaunchRequest request(uint32_t rank, uint32_t half) {
    launches_.emplace_back(new Exchange);
    Exchange &launch = *launches_.back();
    launch.nlanes = plan_.lanes.lanes;
    launch.nranks = 1;
    launch.table = nullptr;
    launch.load_at = launch.loads = 0;
    std::map<uint32_t, uint32_t> last;
    std::vector<Message> firsts, others;
    std::stable_sort(lists_[rank].begin(), lists_[rank].end(),
                     [](const Item &a, const Item &b) { return a.message.bytes < b.message.bytes; });
    for (const Item &item : lists_[rank]) {
      if (item.half != half) continue;
      (last.emplace(item.message.end, 0).second ? firsts : others).push_back(item.message);
    }
    const auto streams = static_cast<uint32_t>(firsts.size());
    std::vector<Message> table = firsts;
    table.insert(table.end(), others.begin(), others.end());
    for (uint32_t m = 0; m < table.size(); ++m) {
      if (m >= streams) table[last[table[m].end]].next = m;
      last[table[m].end] = m;
    }
    // Half of the launches pass messages as arguments, the other half in a table.
    launch.table = random_() % 2 == 0
                       ? nullptr
                       : reinterpret_cast<Message *>(emulation::emulator().allocate(table.size() * sizeof(Message), 256, true));
    std::copy(table.begin(), table.end(), launch.table == nullptr ? launch.messages : launch.table);
    launch.ranks[0] = {&states_[rank], 0, streams};
    emulation::LaunchRequest request{rank, 16, exchange_shared(streams), {2 * rank, 2 * rank + 1}, {rank, rank}, {}};
    request.body = [&launch] { emulation::exchange(launch); };
    return request;
  }

  std::mt19937_64 random_;
  DevicePlan plan_;
  char *arenas_[kRanks];
  std::vector<FifoEnd> ends_[kRanks];
  RankState states_[kRanks];
  Report reports_[kRanks][2] = {};
  uint32_t aborts_[kRanks] = {};
  std::vector<Item> lists_[kRanks];
  std::vector<Sent> sent_;
  std::vector<std::unique_ptr<Exchange>> launches_;
};

}  // namespace

int collc_emulate_exchange(uint64_t seed, uint32_t report_races, uint32_t bytes, uint32_t messages, uint32_t wrong_size,
                           char *message, size_t message_bytes) {
  Exchanging ranks(seed, bytes, messages, wrong_size);
  const std::string failure = ranks.go(seed, report_races != 0);
  std::snprintf(message, message_bytes, "%s", failure.c_str());
  return failure.empty() ? 0 : 1;
}
