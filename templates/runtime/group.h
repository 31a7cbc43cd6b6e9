// ncclGroupStart and ncclGroupEnd: what a thread has collected, and the communicators that exist.
#pragma once
#include <memory>

#include "communicator.h"

namespace collc {

using CommunicatorPtr = std::shared_ptr<Communicator>;

// Handles are looked up, never trusted: one that is unknown, destroyed, inherited through fork or another library's is
// refused with ncclInvalidArgument.
Status find_communicator(ncclComm_t handle, CommunicatorPtr *found);
ncclComm_t add_communicator(const CommunicatorPtr &communicator);
// Takes it out of the list; calls in flight keep it alive.
Status remove_communicator(ncclComm_t handle, CommunicatorPtr *removed);

void group_start();
// Runs what the group holds; the first error wins.
Status group_end();

// Runs the call now, or at the end of the group that this thread has open.
Status submit(const CommunicatorPtr &communicator, const Call &call);

// Creates the communicator now, in the background, or at the end of the open group. On failure *handle becomes null.
Status create(const CommunicatorPtr &communicator, const ncclUniqueId &id, int device, ncclComm_t *handle);

// Lets the open group fail with this status too, and returns it.
Status note_failure(const Status &status);

}  // namespace collc
