#include "wire/lined_slots.h"

#include <algorithm>
#include <cstring>

namespace collc {

LinedSlots::LinedSlots(const FifoEnd &end, uint32_t nslots, uint32_t slot_bytes, uint32_t flags)
    : slots_(end.slots),
      told_(end.lines),
      nslots_(nslots),
      slot_bytes_(slot_bytes),
      flags_(flags),
      data_(uint64_t{nslots} * most()),
      bytes_(nslots) {}

uint64_t *LinedSlots::words(uint64_t number) const {
  return reinterpret_cast<uint64_t *>(slots_ + number % nslots_ * slot_bytes_);
}

// The word of a slot: the chunk's number, from 1, above its bytes.
bool LinedSlots::is_told(uint64_t number, uint32_t *bytes) const {
  const uint64_t word = __atomic_load_n(&told_[number % nslots_].chunk.bytes, __ATOMIC_RELAXED);
  *bytes = std::min(static_cast<uint32_t>(word), most());
  return word >> 32 == static_cast<uint32_t>(number + 1);
}

bool LinedSlots::take(uint64_t number, uint32_t line, char *data) const {
  const uint64_t *const at = words(number) + 2 * line;
  const uint64_t low = __atomic_load_n(at, __ATOMIC_RELAXED), high = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
  const uint32_t flag = flag_of(number);
  if (low >> 32 != flag || high >> 32 != flag) return false;
  const uint64_t both = high << 32 | static_cast<uint32_t>(low);
  std::memcpy(data, &both, sizeof both);
  return true;
}

bool LinedSlots::gather(uint64_t number) {
  uint32_t bytes = 0;
  if (!is_told(number, &bytes)) return false;
  const uint32_t lines = (bytes + kLineData - 1) / kLineData;
  char *const to = data(number);
  while (gathered_ < lines && take(number, gathered_, to + gathered_ * kLineData)) ++gathered_;
  if (gathered_ < lines) return false;
  bytes_[number % nslots_] = bytes;
  gathered_ = 0;
  return true;
}

bool LinedSlots::is_whole(uint64_t number) const {
  uint32_t bytes = 0;
  if (!is_told(number, &bytes)) return false;
  char unused[kLineData];
  for (uint32_t line = 0; line < (bytes + kLineData - 1) / kLineData; ++line)
    if (!take(number, line, unused)) return false;
  return true;
}

void LinedSlots::show(uint64_t number, ChunkRange range, bool last) {
  const uint64_t flag = uint64_t{flag_of(number)} << 32;
  uint64_t *const at = words(number);
  const char *const from = data(number);
  const uint32_t end = (range.end + kLineData - 1) / kLineData;
  const auto put = [at, flag](uint32_t line, uint64_t both) {
    __atomic_store_n(at + 2 * line, flag | static_cast<uint32_t>(both), __ATOMIC_RELAXED);
    __atomic_store_n(at + 2 * line + 1, flag | both >> 32, __ATOMIC_RELAXED);
  };
  for (uint32_t line = range.begin / kLineData; line < end; ++line) {
    uint64_t both = 0;
    std::memcpy(&both, from + line * kLineData, sizeof both);
    put(line, both);
  }
  const uint64_t half = uint64_t{flags_ / 2} + 1;
  if (!last || (number & (half - 1)) + nslots_ < half) return;
  for (uint32_t line = end; line < slot_bytes_ / kLineBytes; ++line) put(line, 0);
}

}  // namespace collc
