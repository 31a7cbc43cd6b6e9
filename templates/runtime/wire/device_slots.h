// Slots between machines in memory of GPUs (GPUDirect): an engine's cards read and write there, and couriers touch nothing of it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace collc {

struct DeviceSlots {
  struct Part {
    char *begin;
    uint64_t bytes;
  };
  // Of the ranks here, where this process has them; empty on ranks that do not connect.
  std::vector<Part> parts;
  std::vector<char *> fifos;  // by FIFO of the allocation; null: in the segment
  std::vector<char *> queues;  // of transfers, by the number that messages have for them; null likewise
  uint64_t largest = 0;  // of the chunks, in bytes
  std::shared_ptr<const void> owner;
  std::function<void()> enter;  // has the thread of the courier use a GPU, as plugins know it from NCCL
  std::string
      refused;  // why this rank cannot; once machines are joined: the first rank that cannot, and why. Empty: all use them

  bool has(const char *at) const {
    return std::any_of(parts.begin(), parts.end(),
                       [at](const Part &part) { return at >= part.begin && at < part.begin + part.bytes; });
  }
};

}  // namespace collc
