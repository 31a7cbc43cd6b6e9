// The fault that a library of the tests has, by its number in planted_faults.py; 0: none. Only code with planted faults reads it.
#pragma once
#include <cstdint>

namespace emulation {
extern const uint32_t planted;
}
