// COLLC_CHECK: known data over every pair of ranks that the plan joins, while the communicator is made.
//
// Pairs that share neither a rank nor a link of the topology are checked at the same time, in rounds; an exchange among all
// ranks lies between two rounds and tells everybody what the last one has found, so that all of them come to one verdict.
#pragma once
#include <vector>

#include "executor/backend.h"
#include "plan/routes.h"

namespace collc {

// The result for one direction between two ranks; `collc doctor --job` reads it (collc/bench/links.py).
struct CheckedPair {
  enum Verdict : uint32_t { kNotChecked, kGood, kSlow };  // not checked: the two share a GPU, so no transfer joins them
  uint32_t from, to;
  uint32_t link;     // LinkClass
  uint32_t verdict;
  uint64_t bytes;    // of the largest message
  double seconds;    // that it took, the best of several
  double gbps;       // of the topology; 0: it has nothing to compare with
};

// The result is the same on all ranks: ncclSystemError names the pairs with wrong bytes. `slow` has a
// line for each pair that is far slower than the topology says.
Status check_links(const RankContext &context, RankBackend &rank, std::vector<CheckedPair> *pairs,
                   std::vector<std::string> *slow);

}  // namespace collc
