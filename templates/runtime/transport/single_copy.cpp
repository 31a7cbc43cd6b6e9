#include "transport/single_copy.h"

#include <algorithm>
#include <unordered_map>

#include "collc/collective_traits.h"

namespace collc {
namespace {

// Looks for freed buffers of peers once in this many calls, and whenever a buffer is mapped.
constexpr uint64_t kTidy = 8;

// Number of this rank's buffers that are remembered as mapped by all ranks; after that, they are offered as new again.
constexpr size_t kMostShown = 4096;

enum class Sent : uint8_t { kInput, kResult };

uint64_t key(uint32_t fifo, uint32_t share) { return uint64_t{fifo} << 32 | share; }

// Calls `visit` with all steps of all ranks of a program.
template <class Visit>
void for_each_step(const Tables &tables, uint32_t nranks, const Program &program, Visit visit) {
  for (uint32_t rank = 0; rank < nranks; ++rank) {
    for (uint32_t c = 0; c < program.nchannels; ++c) {
      const RankChannel &channel = tables.rank_channels[program.first_rank_channel + rank * program.nchannels + c];
      for (uint32_t s = 0; s < channel.nsteps; ++s) visit(rank, tables.steps[channel.first_step + s]);
    }
  }
}

}  // namespace

OneHop one_hop(const Tables &tables, const Placement &placement, const Program &program, uint32_t rank) {
  OneHop found;
  if (!traits(program.collective).uses_trees) return found;
  const auto nranks = static_cast<uint32_t>(placement.nccl_rank.size());
  std::unordered_map<uint64_t, Sent> sent;  // by FIFO and share
  std::vector<bool> sends(nranks, false);
  bool is = true;
  for_each_step(tables, nranks, program, [&](uint32_t plan_rank, const Step &step) {
    if (step.nsend == 0) return;
    const Sent what = step.nrecv == 0 ? Sent::kInput : Sent::kResult;
    found.completes |= what == Sent::kResult;
    is &= (step.flags & (what == Sent::kInput ? kInput : kOutput)) != 0;
    sends[plan_rank] = true;
    for (uint32_t i = 0; i < step.nsend; ++i) {
      const uint64_t where = key(tables.refs[step.first_ref + step.nrecv + i].fifo, step.share);
      is &= sent.emplace(where, what).first->second == what;
    }
  });
  for_each_step(tables, nranks, program, [&](uint32_t, const Step &step) {
    if (step.nrecv == 0) return;
    is &= (step.flags & kOutput) != 0;
    const bool takes = takes_result(found, step);
    is &= !takes || step.nsend == 0;
    for (uint32_t i = 0; i < step.nrecv; ++i) {
      const auto from = sent.find(key(tables.refs[step.first_ref + i].fifo, step.share));
      is &= from != sent.end() && (from->second == Sent::kResult) == takes;
    }
  });
  found.is = is;
  for (uint32_t r = 0; r < nranks; ++r)
    if (sends[r] || found.completes) found.senders.push_back(placement.nccl_rank[r]);
  found.sends = std::find(found.senders.begin(), found.senders.end(), rank) != found.senders.end();
  return found;
}

SingleCopy::SingleCopy(Segment &segment, Offers &offers, uint32_t rank, const Neighbors &neighbors)
    : segment_(segment),
      announcers_(offers.announcers),
      offers_(offers.of),
      rank_(rank),
      neighbors_(neighbors),
      found_(2 * size_t{segment.nranks()}) {}

bool SingleCopy::begin(const Call &call, const OneHop &program, bool allowed, uint64_t input_bytes, uint64_t output_bytes) {
  if (number_ % kTidy == 0) mapped_.tidy(1);
  program_ = &program;
  number_ = call.number;
  signature_ = call.signature & ~kFlags;
  next_ = 0;
  has_new_ = reported_mapped_ = failed_ = offers_output_ = false;
  Offer &mine = offers_[rank_];
  if (program.sends) mine.number.store(0, std::memory_order_relaxed);
  const bool offers = program.sends && allowed && offer_one(mine.input, 0, call.input, input_bytes) &&
                      (!program.completes || offer_one(mine.output, 1, call.output, output_bytes));
  const bool reads = update_announcing(offers);
  if (!program.sends) return reads;
  offered_ = offers && reads && (all_read_ || (all_read_ = all(&Offer::reads_from)));
  if (!announces_) return false;
  offers_output_ = offered_ && program.completes;
  const uint64_t flags = offered_ ? kOffered | (has_new_ ? kNew : 0) : 0;
  // Release, after `number` was set to 0: a reader that acquires this signature does not see the old number any more.
  mine.signature.store(signature_ | flags, std::memory_order_release);
  segment_.show(mine.number, number_);
  ring_all();
  return offered_;
}

// Publishes that this rank announces from the next call on, once this or another rank has a buffer to offer; and that it
// reads announcements, once all ranks announce. Returns whether this rank reads announcements in this call.
bool SingleCopy::update_announcing(bool offers) {
  if (neighbors_.share_all()) return announces_ = all_read_ = true;
  if (reads_from_ != 0) return true;
  Offer &mine = offers_[rank_];
  const uint64_t said = mine.announces_from.load(std::memory_order_relaxed);
  announces_ = said != 0;
  if (!announces_ && (offers || announcers_.load(std::memory_order_relaxed) != 0)) {
    mine.announces_from.store(number_ + 1, std::memory_order_release);
    announcers_.fetch_add(1, std::memory_order_relaxed);
  }
  if (announces_ && all(&Offer::announces_from)) {
    reads_from_ = number_ + 1;
    mine.reads_from.store(reads_from_, std::memory_order_release);
  }
  return false;
}

// Returns whether all ranks have reached the state whose first call is in `since`.
bool SingleCopy::all(std::atomic<uint64_t> Offer::*since) const {
  for (uint32_t peer = 0; peer < segment_.nranks(); ++peer) {
    const uint64_t first = (offers_[peer].*since).load(std::memory_order_acquire);
    if (first == 0 || first > number_) return false;
  }
  return true;
}

// Stores where a buffer is. Returns false if other ranks cannot map it.
bool SingleCopy::offer_one(Offer::Place &place, int which, const void *at, uint64_t bytes) {
  place = {reinterpret_cast<uint64_t>(at), 0};
  if (neighbors_.share_all()) return true;
  const BufferHandle &handle = own_[which].find(at, bytes);
  if (handle.number == 0) return false;
  place.buffer = handle.number;
  BufferHandle &told = offers_[rank_].buffers[which];
  if (told.number != handle.number) told = handle;
  if (last_shown_[which] == handle.number) return true;
  if (shown_.count(handle.number) != 0)
    last_shown_[which] = handle.number;
  else
    has_new_ = true;
  return true;
}

SingleCopy::Agreement SingleCopy::agree() {
  if (!reported_mapped_) {
    const Agreement offers = collect_offers();
    if (offers != Agreement::kDirect || !has_new_) return offers;
    const uint64_t failed = map_offered() ? 0 : 1;
    segment_.show(offers_[rank_].mapped, 2 * number_ + failed);
    ring_all();
    reported_mapped_ = true;
    next_ = 0;
  }
  return collect_mappings();
}

// Returns kDirect if all senders have offered their buffers.
SingleCopy::Agreement SingleCopy::collect_offers() {
  for (; next_ < program_->senders.size(); ++next_) {
    const uint32_t peer = program_->senders[next_];
    if (peer == rank_) continue;
    const Offer &theirs = offers_[peer];
    const uint64_t number = theirs.number.load(std::memory_order_seq_cst);
    blocked_on_ = peer;
    if (number < number_) return Agreement::kOpen;
    const uint64_t signature = theirs.signature.load(std::memory_order_acquire);
    // A peer that has moved on has seen a rank without an offer; if all offers were there, it would wait for this rank.
    if (theirs.number.load(std::memory_order_relaxed) != number_) return Agreement::kFifos;
    if (((signature ^ signature_) & ~kFlags) != 0) return Agreement::kDiffers;
    if ((signature & kOffered) == 0) return Agreement::kFifos;
    has_new_ |= (signature & kNew) != 0;
  }
  return Agreement::kDirect;
}

// Waits until all ranks have reported whether they could map the new buffers. No rank may move on before, because others
// still read its offer.
SingleCopy::Agreement SingleCopy::collect_mappings() {
  for (; next_ < segment_.nranks(); ++next_) {
    const uint64_t said = offers_[next_].mapped.load(std::memory_order_seq_cst);
    blocked_on_ = next_;
    if (said < 2 * number_) return Agreement::kOpen;
    // Another word also means failure if the peer has moved on: after a success it would wait for this rank.
    failed_ |= said != 2 * number_;
  }
  if (failed_) return Agreement::kFifos;
  if (program_->sends && !neighbors_.share_all()) {
    if (shown_.size() >= kMostShown) shown_.clear();
    shown_.insert(offers_[rank_].input.buffer);
    if (offers_output_) shown_.insert(offers_[rank_].output.buffer);
  }
  return Agreement::kDirect;
}

bool SingleCopy::map_offered() {
  mapped_.tidy(SIZE_MAX);
  bool all = true;
  for (const uint32_t peer : program_->senders) {
    all &= input_of(peer) != nullptr;
    if (program_->completes) all &= output_of(peer) != nullptr;
  }
  return all;
}

char *SingleCopy::locate(uint32_t peer, const Offer::Place &place, int which) {
  if (neighbors_.reach_into(peer) == Reach::kShared) return reinterpret_cast<char *>(place.address);
  Found &found = found_[2 * size_t{peer} + static_cast<size_t>(which)];
  if (found.number != place.buffer) {
    const BufferHandle &handle = offers_[peer].buffers[which];
    char *const at = handle.number == place.buffer
                         ? mapped_.translate(neighbors_.process_of(peer), handle, handle.base, handle.bytes)
                         : nullptr;
    if (at == nullptr) return nullptr;
    found = {place.buffer, at, handle.base};
  }
  return found.at + (place.address - found.base);
}

void SingleCopy::finish() {
  next_ = 0;
  segment_.show(offers_[rank_].finished, finished_word());
  ring_all();
}

SingleCopy::Agreement SingleCopy::others_finished() {
  if (!program_->sends && !has_new_) return Agreement::kDirect;
  const uint64_t mine = finished_word();
  for (; next_ < segment_.nranks(); ++next_) {
    blocked_on_ = next_;
    const uint64_t theirs = offers_[next_].finished.load(std::memory_order_seq_cst);
    if (theirs >> kFinishedBits < number_) return Agreement::kOpen;
    // Ranks with different roots differ here. A rank that is further on has read from this rank.
    if (theirs >> kFinishedBits == number_ && theirs != mine) return Agreement::kDiffers;
  }
  offers_output_ = false;
  return Agreement::kDirect;
}

void SingleCopy::ring_all() {
  if (!segment_.has_sleepers()) return;
  for (uint32_t peer = 0; peer < segment_.nranks(); ++peer)
    if (peer != rank_) segment_.ring(peer);
}

}  // namespace collc
