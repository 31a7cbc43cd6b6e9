// The pinned host memory of a communicator. Each pair of ranks that do not reach each other's GPU memory has a region with
// everything between the two, in both directions: the flags and slots of their FIFOs, then their p2p channels. Other pairs have
// a region only for the FIFOs that pass through host memory besides NVLink (path class pcie). All regions lie in one file,
// which the processes of the ranks share; each maps and pins the regions of its pairs.
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
    size_t at = 0;  // in the file
    size_t bytes = 0;
  };

  PinnedPlan() = default;
  // `pairs` do not reach each other's GPU memory; `beside` have FIFOs in host memory, whatever they reach.
  PinnedPlan(uint32_t nranks, const PinnedPairs &pairs, const PinnedPairs &beside = {})
      : nranks_(nranks), number_(size_t{nranks} * nranks, 0), cut_off_(pairs) {
    PinnedPairs all = pairs;
    all.insert(beside.begin(), beside.end());
    for (const auto &[low, high] : all) {
      regions_.push_back({low, high});
      number(low, high) = number(high, low) = static_cast<uint32_t>(regions_.size());
    }
  }

  // Returns true if everything between two ranks is in pinned memory.
  bool joins(uint32_t a, uint32_t b) const {
    return !cut_off_.empty() && cut_off_.count({std::min(a, b), std::max(a, b)}) != 0;
  }
  bool joins_any() const { return !cut_off_.empty(); }
  // Returns true if there are regions, and every pair can do without its region.
  bool is_spare() const { return !regions_.empty() && cut_off_.empty(); }
  size_t &fifo_bytes(uint32_t a, uint32_t b) { return regions_[number(a, b) - 1].fifos; }
  size_t lanes_at(uint32_t a, uint32_t b) const { return regions_[number_[size_t{a} * nranks_ + b] - 1].fifos; }
  // Once all FIFOs have their places.
  void lay_out(size_t lane_bytes) {
    for (Region &region : regions_) {
      region.at = bytes_;
      const size_t lanes = joins(region.low, region.high) ? lane_bytes : 0;
      region.bytes = (region.fifos + lanes + kAlign - 1) / kAlign * kAlign;
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
  PinnedPairs cut_off_;  // from each other's GPU memory
};

}  // namespace collc::cuda
