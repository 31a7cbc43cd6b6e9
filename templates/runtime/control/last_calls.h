// Compares the numbers of calls of ranks: names ranks that have not come to a call yet, and detects ranks that were finalized
// after different numbers of calls.
//
// A rank that waits for nobody in its last calls, such as the root of a small broadcast, does not compare these with the
// calls of other ranks. So they are compared when the rank is finalized. No function blocks.
#pragma once
#include <string>
#include <vector>

#include "control/control.h"

namespace collc {

// Returns text such as "; ranks 1, 2 have not made call 7", for the message of a wait of `rank` in call `number`. The text names
// the earliest call that a rank has not made, and the ranks that have not made it: a rank that has made that call may wait for
// these ranks itself. The text is empty if all ranks have made call `number`.
std::string describe_missing(const Control &control, uint32_t rank, uint64_t number);

// Compares the calls of a finalized rank with the calls of all others. Fails with ncclInvalidUsage if they differ or their
// numbers do, with ncclRemoteError if a rank has died or left before its last call. `late` receives the ranks that may still
// make some of these calls.
Status compare_last_calls(const Control &control, uint32_t rank, std::vector<uint32_t> *late);

}  // namespace collc
