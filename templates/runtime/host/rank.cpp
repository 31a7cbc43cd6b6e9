#include "host/rank.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "collc/collective_traits.h"
#include "base/element.h"
#include "base/environment.h"
#include "base/two_ranks.h"
#include "plan/blocks.h"
#include "plan/weights.h"
#include "host/verbs.h"
#include "host/waiting.h"
#include "wire/courier.h"

namespace collc {
namespace {

// A write into another's output takes less, unless its rank is stopped.
constexpr int64_t kWriterUs = 500000;

// Calls from here on have steps long enough to matter to others.
constexpr uint64_t kServesFirst = 16 << 10, kServesFirstCrowded = 256 << 10;

// Behind the offers of calls of a single copy.
FifoLayout fifo_layout(const Tables &tables, const Placement &placement) {
  FifoChoice choice;
  if (placement.allocation->nranks == 2 && placement.machine.empty()) choice.places = kPlaces;
  return FifoLayout(tables, placement, Offers::bytes(placement.allocation->nranks), choice);
}

}  // namespace

TransferLayout host_layout(const Tables &tables, const Placement &placement) {
  const uint64_t fifos = placement.allocation != nullptr ? fifo_layout(tables, placement).end() : 0;
  return TransferLayout(placement, fifos);
}

HostRank::HostRank(const RankContext &context)
    : context_(context),
      busy_(context.here + (context.placement.machine.empty() ? 0 : 1)),
      shared_{*context.segment,
              context.rank,
              context_.placement.nccl_rank,
              context.tables->refs,
              cores_are_free(),
              {},
              {},
              {},
              {},
              {},
              {},
              false},
      log_(context.segment->log(context.rank)),
      transfer_log_(context.segment->board().transfers(context.rank)),
      plan_rank_(context.placement.plan_rank[context.rank]),
      single_copy_(*context.segment, *reinterpret_cast<Offers *>(context.segment->memory()), context.rank, shared_.neighbours),
      transfers_(*context.segment, host_layout(*context.tables, context.placement), context.rank) {
  context_.exchange = nullptr;  // only valid while the communicator is made
  timed_ = is_set("COLLC_BREAKDOWN");
  if (read_path("COLLC_DUMP") != nullptr) {
    log_.time_ends();
    transfer_log_.time_ends();
  }
  if (context_.placement.allocation == nullptr) return;
  const Tables &tables = *context_.tables;
  const Allocation &allocation = *context_.placement.allocation;
  cuts_.resize(allocation.nprograms);
  shared_.heard.resize(context.nranks);
  shared_.fifos = Fifos(tables, allocation, fifo_layout(tables, context_.placement), context_.segment->memory(), plan_rank_);
}

Status HostRank::connect(const RankContext &context) {
  if (!shared_.fifos.empty() && context.nranks > kMostPeers)
    return fail(ncclInvalidUsage, "the host target runs plans of at most %u ranks", kMostPeers);
  Overrides overrides;
  Status understood = read_overrides(&overrides);
  if (understood.ok()) understood = shared_.distances.read();
  COLLC_RETURN_IF_FAILED(shared_.neighbours.probe(context.exchange, context.placement, context.rank, understood, overrides,
                                                  shared_.distances.is_given_far()));
  agreed_far_ = shared_.neighbours.given_far();  // until the first all_reduce has told
  for (uint32_t peer = 0; peer < context.nranks; ++peer)
    if (peer != context.rank)
      context_.segment->board().way(context.rank, peer) =
          static_cast<unsigned char>(1 + static_cast<unsigned char>(shared_.neighbours.reach_into(peer)));
  COLLC_RETURN_IF_FAILED(shared_.throttle.read());
  weighting_ = overrides.weighting;
  losses_ = context.segment->losses(context.rank);
  balancer_ =
      Balancer::make(*context.segment, *context.tables, context.placement, context.rank, overrides, context.weights, true);
  chunk_limit_ = overrides.chunk_bytes;
  channel_limit_ = overrides.channels != 0 ? overrides.channels : context.most_channels;
  forced_ = overrides.protocol >= 0;
  if (overrides.protocol == Overrides::kSimple) shared_.fifos.leave_lines_out();
  // One protocol beside Simple, a cache line that holds flag and data: LL and LL128 both stand for it.
  if (overrides.protocol > Overrides::kSimple)
    chunk_limit_ = chunk_limit_ == 0 ? SlotLine::kData : std::min(chunk_limit_, SlotLine::kData);
  const MachineThresholds &from = shared_.neighbours.thresholds();
  const auto copies = [](const Thresholds &one) { return one.kernel_sums != UINT64_MAX || one.sums_everywhere != UINT64_MAX; };
  const bool sums = cores_are_free() && (copies(from.near_cores) || copies(from.far_cores));
  const bool differ = std::memcmp(&from.near_cores, &from.far_cores, sizeof from.near_cores) != 0;
  if (cores_are_free() && (shared_.distances.is_given() || differ)) shared_.distances.begin(context.nranks, ticks_per_ns());
  COLLC_RETURN_IF_FAILED(shared_.fifos.connect(shared_.neighbours, context_.placement.nccl_rank, plan_rank_, sums));
  if (!cores_are_free()) shared_.fifos.let_move();
  if (context_.placement.machine.empty()) return {};
  const Tables &all = *context_.tables;
  const Allocation &allocation = *context_.placement.allocation;
  Fifos fifos(all, allocation, fifo_layout(all, context_.placement), context_.segment->memory(), Fifos::kNobody);
  return join_machines({context_.segment, context_.placement, context_.rank, context_.processes, context_.secret,
                        context_.seconds, context.exchange, context.gone, std::move(fifos),
                        host_layout(all, context_.placement)});
}

const HostRank::Cut &HostRank::cut(const Call &call, const Program &program) {
  const size_t number =
      static_cast<size_t>(&program - context_.tables->programs) - context_.placement.allocation->first_program;
  Cut &cut = cuts_[number];
  const uint32_t tuned = context_.weights.empty() ? 0 : context_.weights[number], own = program_weights(program);
  const uint32_t lost = own == 0 ? 0 : losses_.begin(call.number);
  const uint32_t weights = balancer_ == nullptr
                               ? remove_classes(lost, call_weights(program, weighting_, call.number, tuned), own)
                               : balancer_->start(program, call.number, call.count * element_bytes(call.type), lost);
  const bool far = shared_.distances.any_far();
  if (cut.count == call.count && cut.element_bytes == shared_.running.element_bytes && cut.weights == weights &&
      cut.any_far == far && cut.counts_far == agreed_far_)
    return cut;
  if (cut.count == 0) {
    cut.reduces_what_it_sends = reduces_what_it_sends(program);
    if (shared_.neighbours.see_all()) cut.hop = one_hop(*context_.tables, context_.placement, program, context_.rank);
  }
  cut.count = call.count;
  cut.element_bytes = shared_.running.element_bytes;
  cut.weights = weights;
  cut.any_far = far;
  cut.counts_far = agreed_far_;
  cut.shares.resize(program.nshares);
  const uint32_t chunk = most_chunk(program);
  for (uint32_t s = 0; s < program.nshares; ++s) {
    const Share &share = context_.tables->shares[program.first_share + s];
    cut.shares[s] = cut_share(share, call.count, shared_.running.element_bytes, chunk, weights);
    const uint32_t block = nccl_block(program.collective, share.block, context_.placement.nccl_rank);
    place_block(program.collective, context_.nranks, block, call.count, cut.shares[s]);
  }
  cut.iterations.assign(program.nchannels, 0);
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = rank_channel(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      const uint64_t chunks = cut.shares[step.share].nchunks;
      if (chunks != 0) cut.iterations[c] = std::max(cut.iterations[c], chunks + step.lag);
    }
  }
  if (cut.hop.is) find_own_steps(program, &cut);
  cut.streams = is_streamed(true), cut.streams_one_copy = is_streamed(false);
  cut.streams_slots = streams_slots();
  cut.pulled = is_pulled();
  cut.sums_everywhere = sums_everywhere(program);
  cut.exchanges = exchanges(program, cut.shares);
  return cut;
}

// True if this rank sends its input of a share to others and also stores a result that it reduces from it: in place, that
// overwrites what they may not have read.
bool HostRank::reduces_what_it_sends(const Program &program) const {
  std::vector<uint8_t> found(program.nshares, 0);
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = rank_channel(program, c);
    for (uint32_t s = 0; s < place.nsteps; ++s) {
      const Step &step = context_.tables->steps[place.first_step + s];
      if ((step.flags & kInput) == 0) continue;
      if (step.nrecv == 0 && step.nsend > 0) found[step.share] |= 1;
      if (step.nrecv > 0 && (step.flags & kOutput) != 0) found[step.share] |= 2;
    }
  }
  return std::find(found.begin(), found.end(), 3) != found.end();
}

void HostRank::begin(const Call &call) {
  shared_.running.call = &call;
  shared_.running.element_bytes = static_cast<uint32_t>(element_bytes(call.type));
  shared_.running.finish.divisor = call.op.is_average && !call.op.has_scale ? context_.nranks : 1;
  std::memcpy(shared_.running.finish.scale, call.op.scale, sizeof shared_.running.finish.scale);
  mode_ = Mode::kFifos;
  if (call.program == nullptr) {
    remaining_ = 0;
    choose_reduction();
    copy_alone(call);
    return;
  }
  shared_.throttle.begin(call.number);
  begun_parts_ns_ = 0;
  shared_.running.says_far = shared_.distances.any_far();
  shared_.running.hears_far = false;
  // What runs otherwise moves less between buffers that all see.
  const bool offers = !single_copy_.is_idle();
  take(call.alternative == nullptr ? *call.program : offers ? *call.alternative : chosen());
  // By the weights that the cut is of.
  timed_parts_ = balancer_ != nullptr ? balancer_->times() : forced_weights_;
  // First of all: it takes its time until the others see it.
  if (cut_->hop.is && offers) offer();
  note(call);
  const int core = sched_getcpu();
  context_.segment->line(context_.rank)
      .core.store(core < 0 ? UINT32_MAX : static_cast<uint32_t>(core), std::memory_order_relaxed);
  choose_reduction();
  if (timed_) begun_ns_ = now_ns();
  if (mode_ == Mode::kFifos) begin_fifos();
}

void HostRank::note_transfer(const Call &call) {
  if (call.number == 0) {
    transfer_log_.note(++posted_transfers_, 0, call.count, call.packed_call);
  } else if (!call.is_continuation) {
    note(call);
    open_call_ = call.number;
  }
}

void HostRank::end_transfers() {
  if (!failure_.ok()) return;
  if (open_call_ != 0) log_.end(open_call_);
  open_call_ = 0;
  while (ended_transfers_ != posted_transfers_) {
    ++ended_transfers_;
    if (ended_transfers_ + Board::kTransfers > posted_transfers_) transfer_log_.end(ended_transfers_);
  }
}

void HostRank::choose_reduction() {
  if (shared_.running.reduce != nullptr && reduced_type_ == shared_.running.call->type &&
      reduced_op_ == shared_.running.call->op.kind)
    return;
  reduced_type_ = shared_.running.call->type;
  reduced_op_ = shared_.running.call->op.kind;
  shared_.running.reduce = reduce_function(reduced_type_, reduced_op_);
}

void HostRank::begin_fifos() {
  mode_ = Mode::kFifos;
  if (shared_.running.call->alternative != nullptr && &chosen() != shared_.running.program) {
    take(chosen());
    timed_parts_ = balancer_ != nullptr ? balancer_->times() : forced_weights_;
  }
  const Program &program = *shared_.running.program;
  serves_first_ =
      shared_.running.call->count * shared_.running.element_bytes >= (cores_are_free() ? kServesFirst : kServesFirstCrowded);
  channels_.resize(program.nchannels);
  remaining_ = 0;
  if (timed_parts_) begun_parts_ns_ = now_ns();
  for (uint64_t &ended : ended_parts_ns_) ended = 0;
  for (uint32_t c = 0; c < program.nchannels; ++c) {
    const RankChannel &place = rank_channel(program, c);
    ChannelState &channel = channels_[c];
    channel.at = {0, 0};
    channel.chunk = channel.busy_ns = channel.part = 0;
    channel.blocked_on = plan_rank_;  // no peer yet
    channel.steps = context_.tables->steps + place.first_step;
    channel.nsteps = place.nsteps;
    channel.iterations = cut_->iterations[c];
    channel.done = channel.iterations == 0;
    if (place.nsteps != 0) channel.part = context_.tables->shares[program.first_share + channel.steps[0].share].part;
    if (!channel.done) ++remaining_;
  }
  if (remaining_ == 0) finish_call();
}

void HostRank::copy_alone(const Call &call) {
  void *output = call.output;
  if (call.op.has_scale) {  // which no average of one rank is
    constexpr bool kIsScaled = true;
    Finish finish = shared_.running.finish;
    finish.is_scaled = &kIsScaled;
    shared_.running.reduce(&call.input, 1, &output, 1, call.count, finish);
  } else if (call.output != call.input) {
    std::memmove(call.output, call.input, call.count * shared_.running.element_bytes);
  }
}

bool HostRank::advance() {
  bool moved = false;
  if (mode_ != Mode::kFifos) {
    moved = advance_single_copy();
  } else if (serves_first_ && remaining_ != 0) {
    // What others wait for goes first, then a chunk of our own: a rank that reduces all it can before it sends its
    // input keeps the others waiting for that long.
    moved = advance_channels(0);
    if (failure_.ok()) moved |= advance_channels(1);
  } else if (remaining_ != 0) {
    moved = advance_channels(UINT32_MAX);
  }
  if (transfers_.idle()) return moved;
  moved |= transfers_.advance();
  if (transfers_.difference() == nullptr) return moved;
  const Status differs = differing_transfer(*transfers_.difference());
  if (!differs.ok()) fail_all(differs);
  return moved || !differs.ok();
}

// Advances each channel as far as it goes, with at most this many receiving steps.
bool HostRank::advance_channels(uint32_t receives) {
  bool moved = false;
  for (size_t c = 0; c < channels_.size(); ++c) {
    ChannelState &channel = channels_[c];
    if (channel.done) continue;
    // With fewer than the program has, each goes on with a further one when it has ended one.
    if (channel_limit_ != 0 && c >= channel_limit_ && !channels_[c - channel_limit_].done) continue;
    const Cursor before = channel.at;
    HostVerbs verbs(shared_, channel, receives, timed_ ? &times_[c] : nullptr);
    const Progress progress =
        run_channel(verbs, channel.steps, channel.nsteps, shared_.refs, cut_->shares.data(), channel.iterations, channel.at);
    if (progress == Progress::kAborted || shared_.failed_to_read) {
      fail_all(shared_.failure.ok() ? context_.segment->abort_status(context_.rank) : shared_.failure);
      return true;
    }
    const bool ended = progress == Progress::kDone && verbs.drained(cut_->shares.data());
    if (ended) finish_channel(channel);
    moved |= ended || channel.at.iteration != before.iteration || channel.at.step != before.step;
  }
  return moved;
}

void HostRank::finish_channel(ChannelState &channel) {
  channel.done = true;
  if (timed_parts_) ended_parts_ns_[channel.part] = now_ns();
  if (--remaining_ == 0) {
    if (cut_->exchanges) agreed_far_ = shared_.running.says_far || shared_.running.hears_far;
    finish_call();
  }
  if (timed_) times_[static_cast<size_t>(&channel - channels_.data())].waiting += now_ns() - begun_ns_ - channel.busy_ns;
  for (uint32_t s = 0; s < channel.nsteps; ++s) {
    const Step &step = channel.steps[s];
    for (uint32_t i = 0; i < step.nrecv + step.nsend; ++i)
      shared_.fifos[shared_.refs[step.first_ref + i].fifo].end_call(shared_.running.call->number,
                                                                    cut_->shares[step.share].nchunks);
  }
}

void HostRank::fail_all(const Status &status) {
  context_.segment->abort(status, context_.rank);
  if (failure_.ok()) failure_ = status;
  const bool was_running = !done();
  remaining_ = 0;
  mode_ = Mode::kFifos;
  for (ChannelState &channel : channels_) channel.done = true;
  transfers_.fail(failure_);
  // The buffers belong to the caller again: no peer in this process may still read them, and no peer may write to them.
  const int64_t start = now_us();
  for (uint32_t peer = 0; peer < context_.nranks; ++peer) {
    if (shared_.neighbours.reach_of(peer) == Reach::kShared)
      while (is_reading(peer)) sched_yield();
    else if (was_running && single_copy_.offers_output() && shared_.neighbours.maps_of(peer))
      wait_for_writer(peer, start);
  }
}

bool HostRank::is_reading(uint32_t peer) const {
  return context_.segment->line(peer).reading.load(std::memory_order_seq_cst) != 0;
}

// A peer in another process that is writing into our output ends that soon; if it was stopped there, it may go on at any
// time, and then writes into memory that is ours no more.
void HostRank::wait_for_writer(uint32_t peer, int64_t start_us) {
  while (is_reading(peer) && context_.segment->alive(peer)) {
    if (now_us() - start_us < kWriterUs) {
      sched_yield();
      continue;
    }
    if (!detach_buffer(shared_.running.call->output, output_bytes()))
      failure_ = fail(failure_.code(), "%s; rank %u may still write into the output", failure_.text().c_str(), peer);
    single_copy_.withdraw();  // no peer has it mapped any longer
    return;
  }
}

uint64_t HostRank::input_bytes() const {
  return shared_.running.call->count * shared_.running.element_bytes *
         (traits(shared_.running.call->collective).input_per_rank ? context_.nranks : 1);
}

// What the call leaves in this rank's output.
uint64_t HostRank::output_bytes() const {
  return shared_.running.call->count * shared_.running.element_bytes *
         (traits(shared_.running.call->collective).output_per_rank ? context_.nranks : 1);
}

}  // namespace collc
