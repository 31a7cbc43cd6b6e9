// Counts the CUDA graphs that contain calls of one rank.
//
// Owner: CallOrder, and DeferredFrees after the end of the rank. Threads: any; the driver's threads count down. No call blocks.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "cuda/driver.h"

namespace collc::cuda {

class GraphCount {
 public:
  // Counts a graph that is being captured until it and everything that was instantiated from it are destroyed.
  Status add(Graph graph) const {
    auto *const reference = new std::shared_ptr<std::atomic<uint32_t>>(live_);
    const Driver &cu = driver();
    UserObject object = nullptr;
    const Result created = cu.user_object_create(&object, reference, forget, 1, kNoDestructorSync);
    if (created != 0) delete reference;
    COLLC_RETURN_IF_FAILED(check(created, "making an object for a graph"));
    ++*live_;
    const Result retained = cu.graph_retain(graph, object, 1, kMoveReference);
    if (retained != 0) cu.user_object_release(object, 1);
    return check(retained, "giving an object to a graph");
  }
  bool any() const { return *live_ != 0; }

 private:
  // The driver calls this in a thread that must not call the driver.
  static void forget(void *reference) {
    auto *const live = static_cast<std::shared_ptr<std::atomic<uint32_t>> *>(reference);
    --**live;
    delete live;
  }

  std::shared_ptr<std::atomic<uint32_t>> live_ = std::make_shared<std::atomic<uint32_t>>(0);
};

}  // namespace collc::cuda
