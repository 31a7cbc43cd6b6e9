// Alignment of memory that ranks share.
#pragma once
#include <cstddef>
#include <cstdint>

namespace collc {

constexpr size_t kLine = 64;  // bytes of a cache line
constexpr size_t kPage = 4096;
constexpr uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace collc
