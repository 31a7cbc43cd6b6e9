// The data of a check of links on the host target: two buffers in the memory of this process. Calls end before they return.
//
// Owner: the check (communicator/link_check.h), in the thread that creates the communicator. No call blocks.
#pragma once
#include <cstring>
#include <vector>

#include "executor/backend.h"
#include "transport/neighbors.h"

namespace collc {

class HostBench final : public LinkBench {
 public:
  // `limit`: the longest wait of the rank's calls, in seconds, set while this object exists; 0: no limit.
  HostBench(uint64_t bytes, const Neighbors &neighbors, double *limit)
      : sent_(bytes), received_(bytes), neighbors_(neighbors), limit_(limit) {
    *limit_ = kMaxWaitSeconds;
  }
  ~HostBench() override { *limit_ = 0; }
  HostBench(const HostBench &) = delete;
  HostBench &operator=(const HostBench &) = delete;

  void *buffer(bool sends) override { return sends ? sent_.data() : received_.data(); }
  cudaStream_t stream() override { return nullptr; }
  Status put(bool sends, const void *from, uint64_t bytes) override {
    std::memcpy(buffer(sends), from, bytes);
    return {};
  }
  Status get(void *to, uint64_t bytes) override {
    std::memcpy(to, received_.data(), bytes);
    return {};
  }
  Status wait() override { return {}; }
  bool can_transfer(uint32_t) const override { return true; }
  bool read_address(uint32_t peer, uint64_t from, void *to, uint64_t bytes, Status *status) override {
    const Reach reach = neighbors_.reach_into(peer);
    if (reach == Reach::kShared) std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
    if (reach == Reach::kKernel) *status = neighbors_.read(peer, from, to, bytes);
    return reach == Reach::kShared || reach == Reach::kKernel;
  }

 private:
  std::vector<unsigned char> sent_, received_;
  const Neighbors &neighbors_;
  double *limit_;
};

}  // namespace collc
