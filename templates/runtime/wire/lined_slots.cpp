#include "wire/lined_slots.h"

#include <algorithm>
#include <cstring>

namespace collc {
namespace {

uint32_t lines_of(uint32_t bytes) { return (bytes + LinedSlots::kLineData - 1) / LinedSlots::kLineData; }

}  // namespace

LinedSlots::LinedSlots(const FifoEnd &end, uint32_t nslots, uint32_t slot_bytes, uint32_t flags)
    : slots_(end.slots),
      rooms_(end.rooms),
      told_(end.lines),
      nslots_(nslots),
      slot_bytes_(slot_bytes),
      flags_(flags),
      bytes_(nslots) {}

uint64_t *LinedSlots::words(uint64_t number) const {
  return reinterpret_cast<uint64_t *>(slots_ + number % nslots_ * slot_bytes_);
}

// Loads the word of a slot: the chunk's number, counted from 1, above its bytes. Returns whether the number is this chunk's.
bool LinedSlots::is_told(uint64_t number, uint32_t *bytes) const {
  const uint64_t word = __atomic_load_n(&told_[number % nslots_].chunk.bytes, __ATOMIC_RELAXED);
  *bytes = std::min(static_cast<uint32_t>(word), most());
  return word >> 32 == static_cast<uint32_t>(number + 1);
}

uint32_t LinedSlots::take(uint64_t number, uint32_t first, uint32_t end, char *data) const {
  const uint64_t *const at = words(number);
  const uint32_t flag = flag_of(number);
  for (uint32_t line = first; line < end; ++line) {
    const uint64_t low = __atomic_load_n(at + 2 * line, __ATOMIC_RELAXED);
    const uint64_t high = __atomic_load_n(at + 2 * line + 1, __ATOMIC_RELAXED);
    if (low >> 32 != flag || high >> 32 != flag) return line;
    const uint64_t both = high << 32 | static_cast<uint32_t>(low);
    if (data != nullptr) std::memcpy(data + line * kLineData, &both, sizeof both);
  }
  return end;
}

bool LinedSlots::gather(uint64_t number, bool *moved) {
  uint32_t bytes = 0;
  if (!is_told(number, &bytes)) return false;
  const uint32_t lines = lines_of(bytes), before = gathered_;
  gathered_ = take(number, gathered_, lines, data(number));
  *moved |= !was_told_ || gathered_ != before;
  was_told_ = gathered_ < lines;
  if (was_told_) return false;
  bytes_[number % nslots_] = bytes;
  gathered_ = 0;
  return true;
}

bool LinedSlots::is_whole(uint64_t number) const {
  uint32_t bytes = 0;
  return is_told(number, &bytes) && take(number, 0, lines_of(bytes), nullptr) == lines_of(bytes);
}

void LinedSlots::show(uint64_t number, ChunkRange range, bool last) {
  const uint64_t flag = uint64_t{flag_of(number)} << 32;
  uint64_t *const at = words(number);
  const char *const from = data(number);
  const uint32_t end = lines_of(range.end);
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
