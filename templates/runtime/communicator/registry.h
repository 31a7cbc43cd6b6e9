// The communicators that exist. Handles are looked up, never trusted: one that is unknown, destroyed, inherited through fork or
// another library's is refused.
//
// Each thread keeps the communicator that it found last, so that its next call on that takes no lock and, on x86-64, no locked
// instruction. A thread is marked as using what it keeps for the time of a call. Whoever removes a communicator takes it from
// the threads that keep it without using it; one that uses it gives it back when its call ends. Of the mark and the removal
// one side must see the other's: as in segment.h the frequent side only stores, and the rare one pays for both.
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
