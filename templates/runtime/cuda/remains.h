// What ended communicators leave behind while kernels of others run. Freeing memory, closing handles and unpinning wait for
// every kernel of a GPU, and a kernel may wait for a call that the thread which ends a communicator makes later. So these
// things stay until no kernel of this process runs, and nobody launches one while they go.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/lines.h"
#include "control/segment.h"
#include "cuda/descriptors.h"
#include "cuda/device.h"
#include "cuda/pinned.h"

namespace collc::cuda {

class Remains {
 public:
  // In the order in which they go. Others may have `allocated` mapped: it goes once they have closed that.
  std::vector<std::pair<const Device *, Address>> mapped, allocated;
  std::vector<VirtualMemory> virtual_memory;  // own, and that of others
  std::vector<void *> host;  // pinned memory of the library's own
  std::vector<std::unique_ptr<PinnedMemory>> pinned;
  std::vector<void *> registered;  // pinned pages of the segment
  std::vector<Event> events;  // of the last kernels that may use all this

  std::shared_ptr<Segment> segment;
  std::vector<uint32_t> mine, others;  // NCCL ranks of the communicator, in this process and elsewhere

  // What the words take of the target's part of the segment by which ranks say that they have closed what they had mapped.
  static constexpr uint64_t words_bytes(uint32_t nranks) { return whole_pages((nranks + 1) * kLine); }

  // Whether the last kernels have ended.
  bool is_quiet() const;
  // Frees what can be; true if nothing is left. Waits for kernels that run.
  bool free();
  // Whether there is nothing to free.
  bool is_free() const {
    return mapped.empty() && allocated.empty() && virtual_memory.empty() && host.empty() && pinned.empty() &&
           registered.empty() && events.empty();
  }

 private:
  bool others_are_done() const;
  bool closed_ = false;
};

// The thread that frees what could not be freed at once. This file knows nothing of ranks, so they are told to it.
struct Undertaker {
  bool (*any_kernel_runs)();  // whether a call of any rank of this process has not ended; those of graphs aside
  Status (*keep_watching)();  // has the thread look here until nothing is left
};
// Before anything is disposed of.
void set_undertaker(const Undertaker &undertaker);

// Held by those who launch kernels.
std::shared_mutex &launching();
// Takes something over. Frees it before it returns if no kernel of the process runs and others close what they have mapped
// soon, or with `waits` false have done so; else the watcher does that later.
void dispose(std::unique_ptr<Remains> remains, bool waits = true);
void dispose(std::unique_ptr<PinnedMemory> pinned);
// The same, for a thread that must not wait: the watcher does it.
void dispose_later(std::unique_ptr<Remains> remains);
bool any_buried();
// Frees what has been taken over, unless somebody launches or `runs` says that a kernel of the process does.
void free_buried(const std::function<bool()> &runs);

// Not 0 once a rank no longer touches other ranks' memory: one word per rank in the shared segment.
std::atomic<uint32_t> &closed(Segment &segment, uint32_t nccl_rank);

}  // namespace collc::cuda
