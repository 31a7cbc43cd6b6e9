// The thread that tells other processes of the buffers that this one lends, and maps what they lend (loans.h). It waits for the
// driver where it has to, which the watcher never may: nobody waits for it.
#pragma once
#include <cstdint>
#include <memory>

#include "cuda/loans.h"

namespace collc::cuda {

// Until it is closed.
Status attend(const std::shared_ptr<Loans> &loans);
// There is something to send, or somebody has closed.
void ring_desk();
// A buffer of this process is freed.
void forget_buffer(uint64_t number);
// Returns true if readers still have mapped memory that was freed.
bool awaits_returned_memory();

}  // namespace collc::cuda
