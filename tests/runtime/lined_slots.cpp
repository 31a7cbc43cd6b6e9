// Chunks as lines: a thread that writes as kernels do, a proxy between two halves, a thread that reads as kernels do.
//   lined_slots SEED CHUNKS SECONDS     each line arrives within SECONDS; flags have 6 bits, so they repeat after 64 chunks
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "wire/lined_slots.h"

using namespace collc;

namespace {

constexpr uint32_t kSlots = 4, kSlotBytes = 512, kMost = kSlotBytes / 2, kFlags = 63, kPiece = 64;
std::chrono::seconds patience(0);

std::atomic<bool> ended{false};

void require(bool right, const char *what, uint64_t number) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s, chunk %llu\n", what, static_cast<unsigned long long>(number));
  std::_Exit(1);
}

// A chunk's size and its bytes, for both ends.
uint64_t mixed(uint64_t seed, uint64_t number, uint64_t at) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + number * 0xbf58476d1ce4e5b9u + at + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// Few are long, so that flags of a long one's end come again.
uint32_t size_of(uint64_t seed, uint64_t number) {
  const uint64_t chance = mixed(seed, number, 1u << 20);
  return static_cast<uint32_t>(chance % 64 < 3 ? kMost - chance / 64 % 9 : chance / 64 % 100);
}

struct Half {
  std::vector<uint64_t> memory = std::vector<uint64_t>(kSlots * kSlotBytes / 8);
  std::vector<char> rooms = std::vector<char>(kSlots * kMost);
  std::vector<SlotLine> lines = std::vector<SlotLine>(kSlots);
  std::atomic<uint64_t> read{0};
  FifoEnd end;

  Half() {
    end.slots = reinterpret_cast<char *>(memory.data());
    end.rooms = rooms.data();
    end.lines = lines.data();
  }
  uint64_t *words(uint64_t number) { return memory.data() + number % kSlots * (kSlotBytes / 8); }
};

uint64_t flag_of(uint64_t number) { return ((number + 1) & kFlags) << 32; }

void write(Half &half, uint64_t seed, uint64_t chunks) {
  std::mt19937_64 random(seed);
  for (uint64_t number = 0; number < chunks && !ended; ++number) {
    while (number >= half.read.load() + kSlots && !ended) sched_yield();
    const uint32_t bytes = size_of(seed, number);
    const auto tell = [&] {
      __atomic_store_n(&half.lines[number % kSlots].chunk.bytes, (number + 1) << 32 | bytes, __ATOMIC_RELAXED);
    };
    std::vector<uint32_t> order((bytes + 3) / 4);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    // Nothing orders the word of bytes and lines.
    uint64_t until_told = number % 2 == 0 ? 0 : random() % (order.size() + 1);
    for (const uint32_t word : order) {
      if (until_told-- == 0) tell();
      uint32_t data = 0;
      for (uint32_t b = 0; b < 4; ++b) data |= static_cast<uint32_t>(mixed(seed, number, 4 * word + b) & 0xff) << 8 * b;
      __atomic_store_n(half.words(number) + word, flag_of(number) | data, __ATOMIC_RELAXED);
      if (random() % 16 == 0) sched_yield();
    }
    if (until_told == 0) tell();
    // Both words of a line carry the flag, and some chunks write their slot whole.
    const uint32_t end = (bytes + 7) / 8 * 2;
    if (bytes % 8 != 0 && bytes % 8 <= 4) __atomic_store_n(half.words(number) + end - 1, flag_of(number), __ATOMIC_RELAXED);
    if ((number & 31) + kSlots < 32) continue;
    for (uint32_t word = end; word < kSlotBytes / 8; ++word)
      __atomic_store_n(half.words(number) + word, flag_of(number), __ATOMIC_RELAXED);
  }
}

// Threads of a kernel come to any line first.
void read(Half &half, uint64_t seed, uint64_t chunks) {
  std::mt19937_64 random(seed + 2);
  for (uint64_t number = 0; number < chunks; ++number) {
    const uint32_t bytes = size_of(seed, number);
    std::vector<uint32_t> order((bytes + 7) / 8 * 2);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (const uint32_t word : order) {
      uint64_t got = 0;
      const auto start = std::chrono::steady_clock::now();
      while (((got = __atomic_load_n(half.words(number) + word, __ATOMIC_RELAXED)) & ~uint64_t{UINT32_MAX}) !=
             flag_of(number)) {
        sched_yield();
        require(std::chrono::steady_clock::now() - start < patience, "a line does not come", number);
      }
      for (uint32_t b = 0; b < 4 && 4 * word + b < bytes; ++b)
        require((got >> 8 * b & 0xff) == (mixed(seed, number, 4 * word + b) & 0xff), "data", number);
    }
    half.read.store(number + 1);
  }
  ended = true;
}

// In pieces as rails bring them, in any order.
void show(LinedSlots &to, uint64_t number, uint32_t bytes, std::mt19937_64 &random) {
  std::vector<ChunkRange> pieces;
  uint32_t at = 0;
  do {
    const uint32_t end = std::min(bytes, at + kPiece * static_cast<uint32_t>(1 + random() % 3));
    pieces.push_back({at, end});
    at = end;
  } while (at < bytes);
  std::shuffle(pieces.begin(), pieces.end(), random);
  for (const ChunkRange &piece : pieces) to.show(number, piece, piece.end == bytes);
}

}  // namespace

int main(int, char **arguments) {
  const uint64_t seed = std::strtoull(arguments[1], nullptr, 10), chunks = std::strtoull(arguments[2], nullptr, 10);
  patience = std::chrono::seconds(std::strtol(arguments[3], nullptr, 10));
  Half written, read_half;
  LinedSlots from(written.end, kSlots, kSlotBytes, kFlags), to(read_half.end, kSlots, kSlotBytes, kFlags);
  require(from.max_bytes() == kMost, "the data of a slot", 0);
  std::thread writer(write, std::ref(written), seed, chunks), reader(read, std::ref(read_half), seed, chunks);
  std::mt19937_64 random(seed + 1);
  uint64_t sent = 0;
  while (!ended) {
    const bool whole = from.is_whole(sent);
    bool moved = false;
    const bool gathered = from.gather(sent, &moved);
    require(moved || !gathered, "a chunk that comes without a move", sent);
    require(gathered || !whole, "a whole chunk that is not taken", sent);
    if (gathered) {
      require(from.bytes(sent) == size_of(seed, sent), "bytes", sent);
      std::memcpy(to.data(sent), from.data(sent), from.bytes(sent));
      show(to, sent, from.bytes(sent), random);
      ++sent;
    } else {
      sched_yield();
    }
    // A reader does not wait for a chunk without data.
    written.read.store(std::min(read_half.read.load(), sent));
  }
  writer.join();
  reader.join();
  std::printf("%llu chunks\n", static_cast<unsigned long long>(chunks));
}
