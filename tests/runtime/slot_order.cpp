// Visits every state of a FIFO's slot order (transport/slot_order.h) that a writer and readers can reach: `slot_order SLOTS`. A chunk
// is small, large, or in a line and needs no part. Prints the number of states.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include "transport/slot_order.h"

using namespace collc;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

struct State {
  SlotOrder order;
  uint64_t number = 0;  // modulo 2 * slots; `seen` is at most `slots` behind it
  std::vector<uint32_t> in_flight;  // the parts of the unread chunks, oldest first

  std::vector<uint32_t> key(uint32_t slots) const {
    std::vector<uint32_t> key{static_cast<uint32_t>(number % slots)};
    for (uint32_t s = 0; s < slots; ++s) key.push_back(order.of(s));
    key.insert(key.end(), in_flight.begin(), in_flight.end());
    return key;
  }
};

void require(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

bool is_in(const std::vector<uint32_t> &parts, uint32_t part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

}  // namespace

int main(int, char **argv) {
  const uint32_t slots = static_cast<uint32_t>(std::atoi(argv[1]));
  std::set<std::vector<uint32_t>> known;
  std::vector<State> open{State()};
  while (!open.empty()) {
    const State state = open.back();
    open.pop_back();
    if (!known.insert(state.key(slots)).second) continue;
    std::vector<bool> used(slots);
    for (uint32_t s = 0; s < slots; ++s) used[state.order.of(s)] = true;
    require(std::count(used.begin(), used.end(), true) == slots, "two slots have one part");
    if (!state.in_flight.empty()) {
      State next = state;
      next.in_flight.erase(next.in_flight.begin());
      open.push_back(next);
    }
    if (state.in_flight.size() == slots) continue;
    const uint64_t end = state.number - state.in_flight.size() + slots;
    std::vector<uint32_t> free;  // the parts of slots that hold nothing
    for (uint64_t number = state.number; number < end; ++number) free.push_back(state.order.of(number % slots));
    for (const bool first : {false, true}) {
      State next = state;
      const auto own = static_cast<uint32_t>(state.number % slots);
      const uint32_t part = next.order.take(state.number, end, slots, first);
      require(!is_in(state.in_flight, part), "a part that holds what has not been read");
      require(is_in(free, part) && part == next.order.of(own), "not a part that was free");
      if (first) require(part == *std::min_element(free.begin(), free.end()), "not the first part");
      if (!first && is_in(free, own)) require(part == own, "not the slot's own part");
      next.in_flight.push_back(part);
      next.number = (state.number + 1) % slots + slots;
      open.push_back(next);
    }
    State next = state;  // in a line: of that slot's part nothing is used
    next.in_flight.push_back(kNone);
    next.number = (state.number + 1) % slots + slots;
    open.push_back(next);
  }
  std::printf("%zu\n", known.size());
  return 0;
}
