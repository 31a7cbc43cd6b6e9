// Operands::past_first (host/operands.h) on every choice of ways and alignments of up to 4 dests, the first one an output or a slot.
// Prints how many were tried and in how many something went past the caches; fails where an order is wrong.
#include <algorithm>
#include <cstdio>

#include "host/operands.h"

using namespace collc;

int main() {
  constexpr uint32_t kMost = 4;
  static char memory[4096];
  static FifoEnd ends[kMost];
  unsigned tried = 0, past_any = 0;
  for (uint32_t ndests = 1; ndests <= kMost; ++ndests)
    for (uint32_t ways = 0; ways < 1u << ndests; ++ways)
      for (uint32_t odd = 0; odd < 1u << ndests; ++odd)
        for (int has_output = 0; has_output < 2; ++has_output) {
          Operands operands;
          for (uint32_t i = 0; i < ndests; ++i)
            operands.add(memory + i * 256 + 16 * (odd >> i & 1), i == 0 && has_output ? nullptr : &ends[i], ways >> i & 1);
          const uint32_t past = operands.past_first();
          ++tried, past_any += past != 0;
          bool slots_end = false;
          for (uint32_t i = 0; i < ndests; ++i) {
            const auto at = static_cast<size_t>(static_cast<char *>(operands.dests[i]) - memory);
            const size_t was = at / 256;
            const bool is_output = was == 0 && has_output;
            // A dest keeps its slot and its way, and none is there twice.
            if (operands.slots[i] != (is_output ? nullptr : &ends[was]) || operands.ways[i] != (ways >> was & 1)) return 1;
            if (std::count(operands.dests, operands.dests + ndests, operands.dests[i]) != 1) return 2;
            const bool alike = (at - static_cast<size_t>(static_cast<char *>(operands.dests[0]) - memory)) % kLine == 0;
            if (i < past && (operands.ways[i] != kPastCaches || !alike)) return 3;
            if (i >= past && operands.ways[i] == kPastCaches && (past == 0 || alike)) return 4;
            // If slots and output differ in alignment, the slots decide.
            if (i < past && slots_end && !is_output) return 5;
            slots_end |= is_output;
            if (i == 0 && past != 0 && is_output)
              for (uint32_t j = 1; j < ndests; ++j)
                if (ways >> j & 1) return 6;
          }
        }
  std::printf("%u %u\n", tried, past_any);
  return 0;
}
