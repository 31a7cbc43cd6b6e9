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
      sizes_(end.lines),
      nslots_(nslots),
      slot_bytes_(slot_bytes),
      flags_(flags),
      bytes_(nslots) {}

uint64_t *LinedSlots::words(uint64_t number) const {
  return reinterpret_cast<uint64_t *>(slots_ + number % nslots_ * slot_bytes_);
}

// Loads the word of a slot: the chunk's number, counted from 1, above its bytes. Returns whether the number is this chunk's.
bool LinedSlots::has_size(uint64_t number, uint32_t *bytes) const {
  const uint64_t word = __atomic_load_n(&sizes_[number % nslots_].chunk.bytes, __ATOMIC_RELAXED);
  *bytes = std::min(static_cast<uint32_t>(word), max_bytes());
  return word >> 32 == static_cast<uint32_t>(number + 1);
}

uint32_t LinedSlots::take(uint64_t number, uint32_t first, uint32_t end, char *data) const {
  const uint64_t *const at = words(number);
  const uint32_t flag = flag_of(number);
  for (uint32_t line = first; line < end; ++line) {
    const uint64_t low = __atomic_load_n(at + 2 * line, __ATOMIC_RELAXED);
    const uint64_t high = __atomic_load_n(at + 2 * line + 1, __ATOMIC_RELAXED);
    if (low >> 32 != flag || high >> 32 != flag) return line;
    const uint64_t data_word = high << 32 | static_cast<uint32_t>(low);
    if (data != nullptr) std::memcpy(data + line * kLineData, &data_word, sizeof data_word);
  }
  return end;
}

bool LinedSlots::gather(uint64_t number, bool *moved) {
  uint32_t bytes = 0;
  if (!has_size(number, &bytes)) return false;
  const uint32_t lines = lines_of(bytes), previous_lines = copied_lines_;
  copied_lines_ = take(number, copied_lines_, lines, data(number));
  *moved |= !has_seen_size_ || copied_lines_ != previous_lines;
  has_seen_size_ = copied_lines_ < lines;
  if (has_seen_size_) return false;
  bytes_[number % nslots_] = bytes;
  copied_lines_ = 0;
  return true;
}

bool LinedSlots::is_whole(uint64_t number) const {
  uint32_t bytes = 0;
  return has_size(number, &bytes) && take(number, 0, lines_of(bytes), nullptr) == lines_of(bytes);
}

void LinedSlots::show(uint64_t number, ChunkRange range, bool last) {
  const uint64_t flag = uint64_t{flag_of(number)} << 32;
  uint64_t *const at = words(number);
  const char *const from = data(number);
  const uint32_t end = lines_of(range.end);
  const auto store_line = [at, flag](uint32_t line, uint64_t data_word) {
    __atomic_store_n(at + 2 * line, flag | static_cast<uint32_t>(data_word), __ATOMIC_RELAXED);
    __atomic_store_n(at + 2 * line + 1, flag | data_word >> 32, __ATOMIC_RELAXED);
  };
  for (uint32_t line = range.begin / kLineData; line < end; ++line) {
    uint64_t data_word = 0;
    std::memcpy(&data_word, from + line * kLineData, sizeof data_word);
    store_line(line, data_word);
  }
  const uint64_t half_flags = uint64_t{flags_ / 2} + 1;
  if (!last || (number & (half_flags - 1)) + nslots_ < half_flags) return;
  for (uint32_t line = end; line < slot_bytes_ / kLineBytes; ++line) store_line(line, 0);
}

}  // namespace collc
