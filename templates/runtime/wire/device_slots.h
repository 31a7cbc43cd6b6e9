// Slots between machines in memory of a GPU (GPUDirect): an engine's cards read and write there, and couriers touch nothing of it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace collc {

// Has the calling thread use a GPU as long as the object stands, as plugins know it from NCCL.
using GpuUse = std::function<std::shared_ptr<void>()>;

// Of the rank that connects its machine with others.
struct DeviceSlots {
  struct Part {
    char *begin;
    uint64_t bytes;
    uint32_t machine;  // where it goes to, or comes from
    bool incoming;
  };
  std::vector<Part> parts;
  std::vector<char *> fifos;  // by FIFO of the allocation; null: in the segment
  std::vector<char *> queues;  // of transfers, by the number that messages have for them; null likewise
  uint64_t largest = 0;  // of the chunks, in bytes
  std::shared_ptr<const void> owner;
  GpuUse gpu;
  std::function<Status()> may;  // asked when machines are joined
  std::string refused;  // set when machines are joined: why all slots are in the segment; empty: these are used

  bool has(const char *at) const {
    return std::any_of(parts.begin(), parts.end(),
                       [at](const Part &part) { return at >= part.begin && at < part.begin + part.bytes; });
  }
};

}  // namespace collc
