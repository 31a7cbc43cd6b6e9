#include "host/rank.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "collc/collective_traits.h"
#include "base/element.h"
#include "base/environment.h"
#include "base/two_ranks.h"
#include "host/waiting.h"
#include "wire/proxy.h"

namespace collc {
namespace {

// A write into another rank's output takes less time, unless its process is suspended.
constexpr int64_t kWriterUs = 500000;

// Returns true if each thread of this machine that may want a core can have one: its ranks, and a proxy.
bool are_cores_free(const RankContext &context) {
  return context.here + (context.placement.machine.empty() ? 0 : 1) <= context.cores;
}

// The FIFOs lie behind the offers of calls of a single copy.
FifoLayout fifo_layout(const Tables &tables, const Placement &placement) {
  FifoChoice choice;
  if (placement.allocation->nranks == 2 && placement.machine.empty()) choice.places = kPlaces;
  return FifoLayout(tables, placement, Offers::bytes(placement.allocation->nranks), choice);
}

// Runs a call of a communicator of one rank.
void copy_alone(const RunningCall &running) {
  const Call &call = *running.call;
  void *output = call.output;
  if (call.op.has_scale) {  // an average of one rank has no scale
    constexpr bool kIsScaled = true;
    Finish finish = running.finish;
    finish.is_scaled = &kIsScaled;
    running.reduce(&call.input, 1, &output, 1, call.count, finish);
  } else if (call.output != call.input) {
    std::memmove(call.output, call.input, call.count * running.element_bytes);
  }
}

// Sequentially consistent, as the store of the rank that reads: after the abort, either that rank sees the abort, or this look
// sees that it reads.
bool is_reading(Segment &segment, uint32_t peer) { return segment.line(peer).reading.load(std::memory_order_seq_cst) != 0; }

}  // namespace

TransferLayout host_layout(const Tables &tables, const Placement &placement) {
  const uint64_t fifos = placement.allocation != nullptr ? fifo_layout(tables, placement).end() : 0;
  return TransferLayout(placement, fifos);
}

HostRank::HostRank(const RankContext &context)
    : context_(context),
      shared_{*context.segment,
              context.rank,
              context_.placement.nccl_rank,
              context.tables->refs,
              are_cores_free(context),
              {},
              {},
              {},
              {},
              {},
              {},
              false},
      shares_(context_),
      chooser_(context_, shared_.neighbors, shared_.distances, shared_.cores_are_free),
      cutter_(context_),
      fifo_call_(context_, shared_, shares_, breakdown_),
      single_copy_(context_, shared_, breakdown_),
      log_(context.segment->log(context.rank)),
      transfers_(context_, host_layout(*context.tables, context.placement), log_) {
  context_.exchange = nullptr;  // only valid while the communicator is made
  if (read_path("COLLC_DUMP") != nullptr) log_.time_ends();
  if (context_.placement.allocation == nullptr) return;
  const Tables &tables = *context_.tables;
  shared_.heard.resize(context.nranks);
  shared_.fifos = Fifos(tables, *context_.placement.allocation, fifo_layout(tables, context_.placement),
                        context_.segment->memory(), context_.plan_rank());
}

Status HostRank::connect(const RankContext &context) {
  if (!shared_.fifos.empty() && context.nranks > kMostPeers)
    return fail(ncclInvalidUsage, "the host target runs plans of at most %u ranks", kMostPeers);
  Overrides overrides;
  Status understood = read_overrides(&overrides);
  if (understood.ok()) understood = shared_.distances.read();
  COLLC_RETURN_IF_FAILED(shared_.neighbors.probe(context.exchange, context.placement, context.rank, understood, overrides,
                                                 shared_.distances.is_given_far()));
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (peer != context.rank)
      context_.segment->board().way(context.rank, peer) =
          static_cast<unsigned char>(1 + static_cast<unsigned char>(shared_.neighbors.reach_into(peer)));
  COLLC_RETURN_IF_FAILED(shared_.throttle.read());
  chooser_.open(overrides);
  shares_.open(overrides);
  fifo_call_.limit_channels(overrides.channels != 0 ? overrides.channels : context.most_channels);
  if (overrides.protocol == Overrides::kSimple) shared_.fifos.leave_lines_out();
  const MachineThresholds &from = shared_.neighbors.thresholds();
  const auto copies = [](const Thresholds &one) { return one.kernel_sums != UINT64_MAX || one.sums_everywhere != UINT64_MAX; };
  const bool sums = cores_are_free() && (copies(from.near_cores) || copies(from.far_cores));
  const bool differ = std::memcmp(&from.near_cores, &from.far_cores, sizeof from.near_cores) != 0;
  if (cores_are_free() && (shared_.distances.is_given() || differ)) shared_.distances.begin(context.nranks, ticks_per_ns());
  COLLC_RETURN_IF_FAILED(shared_.fifos.connect(shared_.neighbors, context_.placement.nccl_rank, context_.plan_rank(), sums));
  if (!cores_are_free()) shared_.fifos.let_move();
  if (context_.placement.machine.empty()) return {};
  const Tables &all = *context_.tables;
  const Allocation &allocation = *context_.placement.allocation;
  Fifos fifos(all, allocation, fifo_layout(all, context_.placement), context_.segment->memory(), Fifos::kNobody);
  return join_machines({context_.segment, context_.placement, context_.rank, context_.processes, context_.secret,
                        context_.seconds, context.exchange, context.gone, std::move(fifos),
                        host_layout(all, context_.placement)});
}

void HostRank::begin(const Call &call) {
  set_running(call);
  if (call.program == nullptr) return copy_alone(shared_.running);
  shared_.throttle.begin(call.number);
  // An alternative moves less data between buffers that all ranks see.
  const bool offers = single_copy_.may_offer();
  take(call.alternative == nullptr ? *call.program
       : offers                    ? *call.alternative
                                   : chooser_.choose(*call.program, *call.alternative, shared_.running.output_bytes));
  // The offer comes first, because the other ranks see it only after a while.
  if (cut_->hop.is && offers) single_copy_.offer(*cut_, chooser_);
  note(call);
  const int core = sched_getcpu();
  context_.segment->line(context_.rank)
      .core.store(core < 0 ? UINT32_MAX : static_cast<uint32_t>(core), std::memory_order_relaxed);
  breakdown_.begin_call(shared_.running.program->nchannels);
  if (!single_copy_.is_running()) begin_fifos();
}

// Sets the parts of the running call that do not depend on its program.
void HostRank::set_running(const Call &call) {
  RunningCall &running = shared_.running;
  const CollectiveTraits &row = traits(call.collective);
  if (running.reduce == nullptr || running.type != call.type || running.operation != call.op.kind) {
    running.type = call.type;
    running.operation = call.op.kind;
    running.reduce = reduce_function(call.type, call.op.kind);
  }
  running.call = &call;
  running.element_bytes = static_cast<uint32_t>(element_bytes(call.type));
  const uint64_t block = call.count * running.element_bytes;
  running.input_bytes = block * (row.input_per_rank ? context_.nranks : 1);
  running.output_bytes = block * (row.output_per_rank ? context_.nranks : 1);
  const auto input = reinterpret_cast<uintptr_t>(call.input), output = reinterpret_cast<uintptr_t>(call.output);
  running.are_buffers_apart = output >= input + running.input_bytes || input >= output + running.output_bytes;
  running.finish.divisor = call.op.is_average && !call.op.has_scale ? context_.nranks : 1;
  std::memcpy(running.finish.scale, call.op.scale, sizeof running.finish.scale);
  running.says_far = shared_.distances.any_far();
  running.hears_far = false;
}

// The running call runs this program: cuts the call and sets the paths of its data.
void HostRank::take(const Program &program) {
  RunningCall &running = shared_.running;
  const Call &call = *running.call;
  const uint32_t weights = shares_.choose(call, program, cutter_.number_of(program));
  cut_ = &cutter_.cut(program, weights, shared_, chooser_);
  running.program = &program;
  running.keeps_input = running.are_buffers_apart || !cut_->reduces_what_it_sends;
  // Steps that send and steps that overwrite are of one channel.
  running.awaits_fetching = !running.keeps_input && call.input == call.output && program.nchannels == 1;
  running.streams = cut_->paths.streams;
  running.streams_slots = cut_->paths.streams_slots;
  running.pulled = cut_->paths.is_pulled;
  running.learns_pulls = chooser_.learns_pulls(running);
  running.sums_everywhere = cut_->paths.sums_everywhere;
}

void HostRank::begin_fifos() {
  const RunningCall &running = shared_.running;
  if (running.call->alternative != nullptr) {
    const Program &chosen = chooser_.choose(*running.call->program, *running.call->alternative, running.output_bytes);
    if (&chosen != running.program) take(chosen);
  }
  fifo_call_.begin(*cut_);
  if (fifo_call_.is_done()) finish_call();
}

void HostRank::post(const Call &call, Status *status) {
  if (call.number != 0 && !call.is_continuation) note(call);
  transfers_.post(call, status);
}

bool HostRank::advance() {
  bool moved = false;
  if (single_copy_.is_running()) {
    moved = advance_single_copy();
  } else if (!fifo_call_.is_done()) {
    moved = fifo_call_.advance();
    if (fifo_call_.is_broken()) {
      fail_all(shared_.failure.ok() ? context_.segment->abort_status(context_.rank) : shared_.failure);
    } else if (fifo_call_.is_done()) {
      if (cut_->exchanges) chooser_.set_agreed_far(shared_.running.says_far || shared_.running.hears_far);
      finish_call();
    }
  }
  Transfers &queues = transfers_.queues();
  if (queues.idle()) return moved;
  moved |= queues.advance();
  if (queues.difference() == nullptr) return moved;
  const Status differs = describe_difference(*context_.segment, context_.rank, *queues.difference());
  if (!differs.ok()) fail_all(differs);
  return moved || !differs.ok();
}

bool HostRank::advance_single_copy() {
  switch (single_copy_.advance()) {
    case SingleCopyCall::Outcome::kWaits:
      return false;
    case SingleCopyCall::Outcome::kFifos:
      begin_fifos();
      return true;
    case SingleCopyCall::Outcome::kDone:
      finish_call();
      return true;
    case SingleCopyCall::Outcome::kBroken:
      fail_all(context_.segment->abort_status(context_.rank));
      return true;
    case SingleCopyCall::Outcome::kDiffers:
      break;
  }
  const Status differs = find_difference(*context_.segment, context_.rank, single_copy_.blocked_on(), *shared_.running.call);
  if (!differs.ok()) fail_all(differs);
  return !differs.ok();
}

// Publishes that others need no more of this rank for the call that runs. The release orders this rank's reads of their buffers
// before that.
void HostRank::finish_call() {
  const uint64_t number = shared_.running.call->number;
  shares_.end_call(number);
  context_.segment->line(context_.rank).calls.finished.store(number, std::memory_order_release);
  log_.end(number);
}

// Ends the calls that run and breaks the communicator for all ranks. Waits until no other rank uses the buffers of the call.
void HostRank::fail_all(const Status &status) {
  const bool is_first = !context_.segment->aborted();
  const Status failure = is_first ? context_.segment->with_differing_calls(status) : status;
  context_.segment->abort(failure, context_.rank);
  if (failure_.ok()) failure_ = failure;
  const bool was_running = !done();
  fifo_call_.stop();
  single_copy_.stop();
  transfers_.queues().fail(failure_);
  // The buffers belong to the caller again: no peer in this process may still read them, and no peer may write to them.
  const int64_t start = now_us();
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (shared_.neighbors.reach_of(peer) == Reach::kShared)
      while (is_reading(*context_.segment, peer)) sched_yield();
    else if (was_running && single_copy_.offers_output_to(peer))
      wait_for_writer(peer, start);
  }
}

// A peer in another process that is writing into our output ends that soon. If its process is suspended there, it may go on at
// any time, and then writes into memory that belongs to the caller.
void HostRank::wait_for_writer(uint32_t peer, int64_t start_us) {
  while (is_reading(*context_.segment, peer) && context_.segment->alive(peer)) {
    if (now_us() - start_us < kWriterUs) {
      sched_yield();
      continue;
    }
    if (!detach_buffer(shared_.running.call->output, shared_.running.output_bytes))
      failure_ = fail(failure_.code(), "%s; rank %u may still write into the output", failure_.text().c_str(), peer);
    single_copy_.withdraw();
    return;
  }
}

}  // namespace collc
