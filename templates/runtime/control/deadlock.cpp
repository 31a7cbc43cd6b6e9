#include "control/deadlock.h"

#include <array>

namespace collc {
namespace {

using Ranks = std::array<uint64_t, Asleep::kMostRanks / 64>;

bool has(const Ranks &ranks, uint32_t rank) { return (ranks[rank / 64] >> rank % 64 & 1) != 0; }
bool is_empty(const Ranks &ranks) {
  for (const uint64_t word : ranks)
    if (word != 0) return false;
  return true;
}
bool within(const Ranks &ranks, const Ranks &set) {
  for (size_t i = 0; i < ranks.size(); ++i)
    if ((ranks[i] & ~set[i]) != 0) return false;
  return true;
}

// The words that one rank has published.
struct Said {
  uint64_t turn = 0;
  Ranks waits = {};
  InCall call;
};

bool is_unrung(Segment &segment, const Asleep &asleep) {
  const uint32_t bell = asleep.bell.load(std::memory_order_seq_cst);
  return bell < segment.nranks() &&
         segment.line(bell).bell.load(std::memory_order_seq_cst) == asleep.heard.load(std::memory_order_seq_cst);
}

// Returns false if the rank does not sleep, waits for nobody, or its bell has rung.
bool read(Segment &segment, uint32_t rank, Said *said) {
  const Asleep &asleep = segment.line(rank).asleep;
  said->turn = asleep.turn.load(std::memory_order_seq_cst);
  if (said->turn % 2 == 0) return false;
  for (size_t i = 0; i < said->waits.size(); ++i) said->waits[i] = asleep.waits[i].load(std::memory_order_seq_cst);
  said->call = {asleep.what.load(std::memory_order_seq_cst), asleep.count.load(std::memory_order_seq_cst)};
  return !is_empty(said->waits) && is_unrung(segment, asleep) && asleep.turn.load(std::memory_order_seq_cst) == said->turn;
}

// Returns whether nothing has changed since read(). If this holds for all ranks of a set, all of them were asleep at the time
// between the last read() and the first call of this function.
bool still_holds(Segment &segment, uint32_t rank, const Said &said) {
  const Asleep &asleep = segment.line(rank).asleep;
  return is_unrung(segment, asleep) && asleep.turn.load(std::memory_order_seq_cst) == said.turn;
}

// Returns the largest set of ranks that sleep and wait only for each other, by their published words.
Ranks find_stuck(Segment &segment, std::vector<Said> *said) {
  Ranks stuck = {};
  for (uint32_t r = 0; r < segment.nranks(); ++r)
    if (read(segment, r, &(*said)[r])) stuck[r / 64] |= uint64_t{1} << r % 64;
  // A rank that waits for a rank outside the set may still proceed.
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t r = 0; r < segment.nranks(); ++r) {
      if (!has(stuck, r) || within((*said)[r].waits, stuck)) continue;
      stuck[r / 64] &= ~(uint64_t{1} << r % 64);
      changed = true;
    }
  }
  return stuck;
}

}  // namespace

void SleepNote::say(const std::vector<bool> &ranks, uint32_t bell, uint32_t heard, const InCall &call) {
  withdraw();
  if (segment_.nranks() > Asleep::kMostRanks) return;
  Ranks waits = {};
  for (uint32_t r = 0; r < ranks.size(); ++r) waits[r / 64] |= uint64_t{ranks[r]} << r % 64;
  for (size_t i = 0; i < waits.size(); ++i) asleep_.waits[i].store(waits[i], std::memory_order_seq_cst);
  asleep_.bell.store(bell, std::memory_order_seq_cst);
  asleep_.heard.store(heard, std::memory_order_seq_cst);
  asleep_.what.store(call.what, std::memory_order_seq_cst);
  asleep_.count.store(call.count, std::memory_order_seq_cst);
  asleep_.turn.fetch_add(1, std::memory_order_seq_cst);
}

void SleepNote::withdraw() {
  const uint64_t turn = asleep_.turn.load(std::memory_order_seq_cst);
  if (turn % 2 == 1) asleep_.turn.store(turn + 1, std::memory_order_seq_cst);
}

Status find_deadlock(Segment &segment, uint32_t rank) {
  if (segment.nranks() > Asleep::kMostRanks) return {};
  std::vector<Said> said(segment.nranks());
  const Ranks stuck = find_stuck(segment, &said);
  if (!has(stuck, rank)) return {};
  // The second rank to name: a rank in another call, preferably one that this rank waits for.
  uint32_t other = rank, other_preference = 0;
  for (uint32_t r = 0; r < segment.nranks(); ++r) {
    if (!has(stuck, r)) continue;
    if (!still_holds(segment, r, said[r])) return {};
    const InCall &mine = said[rank].call, &theirs = said[r].call;
    const bool differs = theirs.what != mine.what || theirs.count != mine.count;
    const uint32_t preference = r == rank ? 0 : 1 + 2 * uint32_t{differs} + uint32_t{has(said[rank].waits, r)};
    if (preference > other_preference) other = r, other_preference = preference;
  }
  const auto describe = [&](uint32_t r) {
    return format("rank %u is in %s", r, describe_call(said[r].call.what, said[r].call.count).c_str());
  };
  if (other == rank) return fail(ncclInvalidUsage, "calls differ: a rank waits for itself: %s", describe(rank).c_str());
  return fail(ncclInvalidUsage, "calls differ: ranks wait for each other: %s; %s", describe(rank).c_str(),
              describe(other).c_str());
}

}  // namespace collc
