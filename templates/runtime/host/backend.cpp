// The host target: ranks are threads or processes of one machine, buffers are ordinary memory.
#include "backend.h"

#include <algorithm>
#include <cstdlib>

#include "host/rank.h"
#include "host/waiting.h"

namespace collc {
namespace {

constexpr uint64_t kSleepUs = 20000;  // how often a sleeper looks for dead peers

// The calls of one rank in a group: collectives in order, transfers beside them.
struct Queue {
  HostRank *rank;
  std::vector<Submission *> collectives;
  size_t next = 0;  // collectives begun

  bool done() const { return !rank->failure().ok() || (next == collectives.size() && rank->idle()); }
};

class HostBackend final : public Backend {
 public:
  Status current_device(int *device) override {
    *device = device_;
    return {};
  }
  Status use_device(int device) override {
    device_ = device;
    return {};
  }
  uint64_t shared_bytes(const Tables &tables, const Placement &placement) const override {
    return host_layout(tables, placement).end();
  }
  Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) override {
    *rank = std::make_unique<HostRank>(context);
    return {};
  }
  void run(std::vector<Submission> &batch) override;
  void *allocate(size_t bytes) override { return std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage); }
  Status release(void *memory) override {
    std::free(memory);
    return {};
  }

 private:
  static thread_local int device_;
};

thread_local int HostBackend::device_ = 0;

// The collective that failed and those behind it; failed transfers know themselves.
void fail_rest(Queue &queue) {
  for (size_t i = queue.next == 0 ? 0 : queue.next - 1; i < queue.collectives.size(); ++i)
    queue.collectives[i]->status = queue.rank->failure();
}

// Advances all queues once. True if anything moved.
bool pass(std::vector<Queue> &queues) {
  bool moved = false;
  for (Queue &queue : queues) {
    if (queue.done()) continue;
    while (queue.rank->done() && queue.next < queue.collectives.size() && queue.rank->failure().ok()) {
      queue.rank->begin(queue.collectives[queue.next++]->call);
      queue.rank->advance();
      moved = true;
    }
    moved |= queue.rank->advance();
    if (!queue.rank->failure().ok()) fail_rest(queue);
  }
  return moved;
}

void set_sleeping(std::vector<Queue> &queues, uint32_t value) {
  for (Queue &queue : queues)
    queue.rank->segment().line(queue.rank->rank()).sleeping.store(value, std::memory_order_seq_cst);
}

void HostBackend::run(std::vector<Submission> &batch) {
  std::vector<Queue> queues;
  for (Submission &submission : batch) {
    auto *rank = static_cast<HostRank *>(submission.rank);
    auto queue = std::find_if(queues.begin(), queues.end(), [&](const Queue &q) { return q.rank == rank; });
    if (queue == queues.end()) queue = queues.insert(queues.end(), Queue{rank, {}, 0});
    if (!rank->failure().ok())
      submission.status = rank->failure();
    else if (submission.call.work == Work::kProgram)
      queue->collectives.push_back(&submission);
    else
      rank->post(submission.call, &submission.status);
  }
  // All ranks of a group in one thread sleep on one bell; it must lie in memory that all their peers can ring.
  const auto done = [&] { return std::all_of(queues.begin(), queues.end(), [](const Queue &q) { return q.done(); }); };
  if (queues.empty()) return;
  Segment &memory = queues[0].rank->segment();
  const bool one_segment =
      std::all_of(queues.begin(), queues.end(), [&](const Queue &q) { return &q.rank->segment() == &memory; });
  const bool free_cores = queues.size() == 1 && queues[0].rank->cores_are_free();
  Waiting waiting(free_cores);
  while (!done()) {
    if (pass(queues)) {
      waiting.progressed();
      continue;
    }
    if (waiting.pause()) continue;
    const int64_t waited = now_us() - waiting.since_us();
    if (one_segment) {
      const uint32_t bell = queues[0].rank->rank();
      const uint32_t heard = memory.line(bell).bell.load(std::memory_order_seq_cst);
      set_sleeping(queues, bell + 1);
      const bool moved = pass(queues);  // the second look: whoever publishes from now on rings
      if (!moved) futex_wait(memory.line(bell).bell, heard, kSleepUs);
      set_sleeping(queues, 0);
      if (moved) {
        waiting.progressed();
        continue;
      }
    } else {
      // Communicators with different peers: nobody can ring for all of them, so look again soon.
      timespec nap{0, 200000};
      nanosleep(&nap, nullptr);
    }
    for (Queue &queue : queues) {
      if (queue.done()) continue;
      queue.rank->diagnose(waited);
      if (!queue.rank->failure().ok()) fail_rest(queue);
    }
  }
}

}  // namespace

Backend &backend() {
  static HostBackend *const only = new HostBackend;  // outlives every thread
  return *only;
}

}  // namespace collc
