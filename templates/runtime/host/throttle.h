// Path classes of a given speed, for tests of the balancer: on this target all classes are memory.
//
// COLLC_THROTTLE=nvlink:12.5,pcie:6.25,nvlink:3@20 lets each rank send at most 12.5 and 6.25 MB/s over these classes, and over
// the first only 3 MB/s from call 20 on. Others are not throttled.
//
// Owner: HostRank, in its ChannelContext. Threads: the one that makes calls. No call blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/status.h"
#include "collc/step_program.h"
#include "plan/weights.h"

namespace collc {

class Throttle {
 public:
  Status read() {
    for (const std::string &word : read_list("COLLC_THROTTLE")) {
      const size_t colon = word.find(':');
      uint32_t part = 0;
      while (part < kClasses && word.substr(0, colon) != class_name(part)) ++part;
      Limit limit{part, 0, 1};
      char *end = nullptr;
      if (colon != std::string::npos) limit.rate = std::strtod(word.c_str() + colon + 1, &end) / 1000;
      if (end != nullptr && *end == '@') limit.from = std::strtoull(end + 1, &end, 10);
      if (part == kClasses || end == nullptr || *end != '\0' || !(limit.rate > 0 && limit.rate < 1e6))
        return fail(ncclInvalidUsage, "COLLC_THROTTLE=%.60s is not MB/s as in nvlink:12.5,pcie:6,nvlink:3@20", word.c_str());
      limits_.push_back(limit);
    }
    return {};
  }
  bool is_set() const { return !limits_.empty(); }

  void begin(uint64_t call) {
    for (const Limit &limit : limits_)
      if (limit.from <= call) rates_[limit.part] = limit.rate;
    if (is_set()) std::fill(free_, free_ + kClasses, now_ns());
  }
  // Until the class could have carried a chunk of that size since it was free.
  bool holds(uint32_t part, uint64_t bytes) const { return rates_[part] > 0 && now_ns() < free_[part] + time(part, bytes); }
  // A rank that looks late, because ranks share cores, may catch up. Otherwise a class would reach half of its rate or less.
  void sent(uint32_t part, uint64_t bytes) {
    if (rates_[part] > 0) free_[part] = std::max(free_[part] + time(part, bytes), now_ns() - kLate);
  }

 private:
  struct Limit {
    uint32_t part;
    double rate;  // bytes per ns
    uint64_t from;  // call
  };
  uint64_t time(uint32_t part, uint64_t bytes) const {
    return static_cast<uint64_t>(static_cast<double>(bytes) / rates_[part]);
  }

  static constexpr uint64_t kLate = 50000000;
  std::vector<Limit> limits_;
  double rates_[kClasses] = {};  // 0: no limit
  uint64_t free_[kClasses] = {};  // since when
};

}  // namespace collc
