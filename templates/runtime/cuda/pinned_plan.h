// The pinned host memory of a communicator: a region for each pair of ranks that do not reach each other's GPU memory, with
// everything between the two, in both directions: the flags and slots of their FIFOs, then the lanes of their transfers.
// All regions lie in one file, which the processes of the ranks share; each maps and pins those of its own pairs.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace collc::cuda {

using PinnedPairs = std::set<std::pair<uint32_t, uint32_t>>;  // ranks of the plan, the lower one first

class PinnedPlan {
 public:
  static constexpr size_t kAlign = 64 << 10;  // of a region; the largest page of the systems that this runs on

  struct Region {
    uint32_t low, high;
    size_t fifos = 0;  // bytes of their flags and slots
    size_t at = 0;     // in the file
    size_t bytes = 0;
  };

  PinnedPlan() = default;
  PinnedPlan(uint32_t nranks, const PinnedPairs &pairs) : nranks_(nranks), number_(size_t{nranks} * nranks, 0) {
    for (const auto &[low, high] : pairs) {
      regions_.push_back({low, high});
      number(low, high) = number(high, low) = static_cast<uint32_t>(regions_.size());
    }
  }

  bool joins(uint32_t a, uint32_t b) const { return !regions_.empty() && number_[size_t{a} * nranks_ + b] != 0; }
  // Whether a rank reaches no other one's GPU memory.
  bool joins_all(uint32_t rank) const {
    for (uint32_t peer = 0; peer < nranks_; ++peer)
      if (peer != rank && !joins(rank, peer)) return false;
    return !regions_.empty();
  }
  size_t &fifo_bytes(uint32_t a, uint32_t b) { return regions_[number(a, b) - 1].fifos; }
  size_t lanes_at(uint32_t a, uint32_t b) const { return regions_[number_[size_t{a} * nranks_ + b] - 1].fifos; }
  // Once all FIFOs have their places.
  void lay_out(size_t lane_bytes) {
    for (Region &region : regions_) {
      region.at = bytes_;
      region.bytes = (region.fifos + lane_bytes + kAlign - 1) / kAlign * kAlign;
      bytes_ += region.bytes;
    }
  }
  const std::vector<Region> &regions() const { return regions_; }
  size_t bytes() const { return bytes_; }

 private:
  uint32_t &number(uint32_t a, uint32_t b) { return number_[size_t{a} * nranks_ + b]; }

  uint32_t nranks_ = 0;
  size_t bytes_ = 0;
  std::vector<uint32_t> number_;  // 1 + the region of a pair, 0: none
  std::vector<Region> regions_;
};

}  // namespace collc::cuda
