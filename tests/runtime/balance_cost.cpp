// Measures the cost that the balancer adds to a call whose weights do not move, without any data.
//
//   balance_cost NRANKS CALLS        nanoseconds per call and rank, all ranks in turn in one thread
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "control/balancer.h"

namespace {

void require(bool holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char **argv) {
  using namespace collc;
  if (argc != 3) return 2;
  const auto nranks = static_cast<uint32_t>(std::atoi(argv[1]));
  const auto calls = static_cast<uint64_t>(std::atoll(argv[2]));
  Program program = {};
  program.collective = Collective::kAllReduce;
  program.nvlink_weight = 200;
  program.pcie_weight = 50;
  Tables tables = {};
  tables.programs = &program;
  Allocation allocation = {};
  allocation.nprograms = 1;
  allocation.nranks = nranks;
  std::shared_ptr<Segment> segment;
  require(Segment::create({nranks, 64, 4096}, &segment).ok(), "no memory");
  Overrides overrides;
  overrides.balance = Balance::kDefault;
  std::vector<std::unique_ptr<Balancer>> ranks;
  for (uint32_t r = 0; r < nranks; ++r)
    ranks.push_back(std::make_unique<Balancer>(*segment, tables, allocation, r, overrides, std::vector<uint32_t>(), true));
  uint64_t begun = 0;
  for (uint64_t call = 1; call <= 2 * calls; ++call) {
    if (call == calls + 1) begun = now_ns();  // what comes before has moved weights for trials
    for (auto &rank : ranks) require(rank->may_start(call), "a call starts");
    for (auto &rank : ranks) {
      require(rank->start(program, call, 1 << 20, 0) != 0, "a call starts");
      const uint64_t ended[kClasses] = {2000, 2000, 0};  // at the same time, so that nothing is to be gained
      if (rank->times()) rank->tell(call, 1000, ended);
    }
  }
  std::printf("%.1f\n", static_cast<double>(now_ns() - begun) / static_cast<double>(calls * nranks));
  return 0;
}
