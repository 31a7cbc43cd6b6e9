// Holds memory and handles of ended communicators until no kernel of this process runs. Freeing memory, closing handles and
// unpinning wait for every kernel of a GPU, and a kernel may wait for a call that the thread which ends a communicator makes
// later. No thread launches a kernel while these things are freed.
//
// Three kinds of users end later than the communicator: calls of this rank that have not run, graphs with such calls, and ranks
// of other processes that have mapped exported memory by an IPC handle. What they use stays until they have ended, also after
// an abort.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/lines.h"
#include "control/segment.h"
#include "cuda/descriptors.h"
#include "cuda/device.h"
#include "cuda/graph_count.h"
#include "cuda/pinned.h"

namespace collc::cuda {

// The items of one rank, or of one process of a communicator. Owner: CudaRank until its end, then World, then the list that
// free_pending() frees. Threads: one at a time. Only free() blocks: it waits for kernels that run.
class DeferredFrees {
 public:
  DeferredFrees() = default;
  DeferredFrees(const DeferredFrees &) = delete;
  DeferredFrees &operator=(const DeferredFrees &) = delete;

  // Each adds an item to free. An item whose GPU was reset is dropped: its address may belong to somebody else now.
  void free_memory(const Device *device, Address at);
  void close_handle(const Device *device, Address at);
  void unmap(const Device *device, const VirtualMemory &memory);
  void free_pinned(const Device *device, void *at);
  void destroy(const Device *device, Event event);
  void unpin(char *at);
  void drop(std::unique_ptr<PinnedMemory> pinned);
  // Memory that other processes may have mapped by an IPC handle: freed when each of `importers` has closed it, or has died.
  void free_exported(const Device *device, Address at);
  // Takes everything that `other` holds.
  void merge(std::unique_ptr<DeferredFrees> other);

  // Nothing is freed before this event, or while a graph of this count exists.
  void wait_for(const Device *device, Event event) { events_.emplace_back(device, event); }
  void wait_for(std::shared_ptr<const GraphCount> graphs) { graphs_.push_back(std::move(graphs)); }
  // The NCCL ranks of the communicator, in this process and in others of this machine. The former say in the segment when they
  // have closed what they had mapped of the latter.
  void set_ranks(std::shared_ptr<Segment> segment, std::vector<uint32_t> importers_here, std::vector<uint32_t> importers);

  // Bytes of the target's part of the segment for a word per rank: the rank has closed what it had mapped.
  static constexpr uint64_t words_bytes(uint32_t nranks) { return whole_pages((nranks + 1) * kLine); }

  // Returns true if the last kernels have ended.
  bool is_quiet() const;
  bool has_graphs() const;
  bool is_empty() const { return items_.empty() && handles_.empty() && exported_.empty() && closed_; }
  // Frees what may be freed; true if nothing is left. Waits for kernels that run.
  bool free();

 private:
  struct Item {
    const Device *device;  // null: of none
    std::function<void()> free;
  };
  static void free_all(std::vector<Item> *items);
  bool close_handles();
  std::vector<uint32_t> find_importers() const;
  void warn(const std::vector<uint32_t> &importers);

  std::vector<Item> items_, exported_;
  std::vector<std::pair<const Device *, Address>> handles_;  // of memory of other processes
  std::vector<std::pair<const Device *, Event>> events_;
  std::vector<std::shared_ptr<const GraphCount>> graphs_;
  std::shared_ptr<Segment> segment_;
  std::vector<uint32_t> importers_here_, importers_;
  bool closed_ = true;  // the ranks of this process have closed what they had mapped, or the driver has refused to
  int64_t closed_ms_ = 0;  // when they said so
  bool has_warned_ = false;
};

// Functions for the ranks of the process, which this file does not know.
struct ReleaseHooks {
  bool (*any_kernel_runs)();  // whether a call of any rank of this process has not ended, calls of graphs aside
  Status (*keep_watching)();  // has a thread call free_pending() until nothing is left
};
// Must be called before the first dispose().
void set_release_hooks(const ReleaseHooks &hooks);

// A thread that launches kernels holds this lock.
std::shared_mutex &launching();
// Frees everything before it returns if that is soon possible; else the watcher frees it later. Soon: no kernel of the process
// runs, and importers close within 0.5 s.
void dispose(std::unique_ptr<DeferredFrees> frees);
void dispose(std::unique_ptr<PinnedMemory> pinned);
// Frees at once what may be freed now. The watcher frees the rest later.
void dispose_without_waiting(std::unique_ptr<DeferredFrees> frees);
bool has_pending();
// Frees what may be freed, unless a thread launches a kernel or `runs` says that a kernel of the process runs.
void free_pending(const std::function<bool()> &runs);

}  // namespace collc::cuda
