// The communicators that exist. Handles are looked up, never trusted. A handle that is unknown or destroyed, was inherited
// through fork, or belongs to another library is refused.
//
// Each thread keeps the communicator that it found last, so that its next call on it takes no lock and, on x86-64, no locked
// instruction. During a call, a mark says that the thread uses the communicator that it keeps. The thread that removes a
// communicator takes it from the threads that keep it without using it; a thread that uses it gives it back when its call ends.
// Either the removal must see the mark, or the call must see the removal: as in segment.h, the frequent side (the mark) only
// stores, and the rare side (the removal) pays for the order of both.
#pragma once
#include <memory>

#include "communicator/communicator.h"

namespace collc {

using CommunicatorPtr = std::shared_ptr<Communicator>;

struct KeptCommunicator;  // by a thread

ncclComm_t add_communicator(const CommunicatorPtr &communicator);
// Calls in flight keep it alive.
Status remove_communicator(ncclComm_t handle, CommunicatorPtr *removed);

// The communicator of a handle, for the time of a call: of the thread and the block that it was looked up in.
class Lookup {
 public:
  Lookup() = default;
  ~Lookup() {
    if (kept_ != nullptr) end();
  }
  Lookup(const Lookup &) = delete;
  Lookup &operator=(const Lookup &) = delete;

  // Once. ncclInvalidArgument if there is none.
  Status find(ncclComm_t handle);
  const CommunicatorPtr &communicator() const { return *found_; }
  Communicator *operator->() const { return found_->get(); }

 private:
  Status find_in_registry(ncclComm_t handle, bool keep);
  void end();

  CommunicatorPtr own_;  // where the thread does not keep it
  const CommunicatorPtr *found_ = &own_;
  KeptCommunicator *kept_ = nullptr;
};

}  // namespace collc
