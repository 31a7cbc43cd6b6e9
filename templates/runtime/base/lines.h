// What memory that ranks share is aligned to.
#pragma once
#include <cstddef>

namespace collc {

constexpr size_t kLine = 64;  // a cache line
constexpr size_t kPage = 4096;

}  // namespace collc
