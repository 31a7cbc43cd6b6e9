// ncclGroupStart and ncclGroupEnd: what a thread has collected.
#pragma once
#include <vector>

#include "communicator/registry.h"

namespace collc {

void group_start();
// Runs what the group holds; the first error wins.
Status group_end();
bool in_group();
// Before a call goes to the real NCCL: opens its group too if this thread has one open.
Status enter_real_group();

// Ends what a communicator is for, behind the calls of the group that this thread has open.
Status finalize(const CommunicatorPtr &communicator);

// Runs the calls of one function now, or at the end of the group that this thread has open.
Status submit(const CommunicatorPtr &communicator, const std::vector<Call> &calls);
Status submit(const CommunicatorPtr &communicator, Submission &one);

// Makes the communicator now, in the background, or at the end of the open group. *handle is set at once; it becomes null
// if that fails, or if this rank is in no part.
Status create(const CommunicatorPtr &communicator, const Origin &origin, ncclComm_t *handle);

// Lets the open group fail with this status too.
void keep_failure(const Status &status);
// The same if it is a failure; returns it.
inline Status note_failure(Status status) {
  if (!status.ok()) keep_failure(status);
  return status;
}

}  // namespace collc
