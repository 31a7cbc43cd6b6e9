// Compares how many calls the ranks have made: names the ranks that have not come to a call, and finds ranks that are finalized after
// other calls than the rest.
//
// A rank that waits for nobody in its last calls, such as the root of a small broadcast, does not compare them with the calls of
// other ranks. So the rank compares them when it is finalized.
#pragma once
#include <string>
#include <vector>

#include "control/control.h"

namespace collc {

// "; ranks 1, 2 have not made call 7", for the message of a wait of `rank` in that call. Empty if all ranks have made it.
std::string describe_missing(const Control &control, uint32_t rank, uint64_t number);

// Compares the calls of a finalized rank with the calls of all others. ncclInvalidUsage if they differ or are not equally many,
// ncclRemoteError if a rank has gone before its last one. `late`: the ranks that may still make some of these calls.
Status compare_last_calls(const Control &control, uint32_t rank, std::vector<uint32_t> *late);

}  // namespace collc
