// The host target: ranks are threads or processes of one machine, buffers are ordinary memory.
#include "executor/backend.h"

#include <algorithm>

#include "transport/buffers.h"
#include "host/rank.h"
#include "host/waiting.h"
#include "plan/servers.h"

namespace collc {
namespace {

constexpr uint64_t kSleepUs = 20000;  // how often a sleeper looks for dead peers
constexpr uint32_t kPolls = 64;       // looks of a rank with a core of its own before it waits in earnest

// The calls of one rank in a group: collectives in order, transfers beside them.
struct Queue {
  HostRank *rank;
  Submission *const *collectives;
  size_t count;
  size_t next = 0;  // collectives begun

  bool done() const { return !rank->failure().ok() || (next == count && rank->idle()); }
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
  const TargetFacts &facts() const override { return facts_; }
  uint64_t shared_bytes(const Tables &tables, const Placement &placement) const override {
    return host_layout(tables, placement).end();
  }
  Status open(const RankContext &context, std::unique_ptr<RankBackend> *rank) override {
    auto made = std::make_unique<HostRank>(context);
    COLLC_RETURN_IF_FAILED(made->connect(context));
    *rank = std::move(made);
    return {};
  }
  void run(std::vector<Submission> &batch) override;
  void run_one(Submission &submission) override;
  Status admit(const std::vector<Submission> &) override { return {}; }
  Status admit_one(const Submission &) override { return {}; }
  void *allocate(size_t bytes) override { return allocate_buffer(bytes); }
  Status release(void *memory) override { return release_buffer(memory); }

 private:
  static thread_local int device_;
  // FIFOs and queues limit how far a rank can run ahead; only calls without elements never wait.
  const TargetFacts facts_ = {64, true, false, spans_servers(), false, 1 << 20};
};

thread_local int HostBackend::device_ = 0;

// The collective that failed and those behind it; failed transfers know themselves.
void fail_rest(Queue &queue) {
  for (size_t i = queue.next == 0 ? 0 : queue.next - 1; i < queue.count; ++i)
    queue.collectives[i]->status = queue.rank->failure();
}

// The queues that one thread serves.
class Service {
 public:
  Service(Queue *queues, size_t count) : begin_(queues), end_(queues + count) {}

  // Runs all calls to their ends.
  void run() {
    const bool is_alone = end_ - begin_ == 1, has_core = begin_->rank->cores_are_free();
    const Placement &placement = begin_->rank->context().placement;
    // Waits for other machines are long for a core, which the proxy, and ranks of containers next to this one, can use.
    Waiting waiting(is_alone && has_core && placement.nmachines() == 1);
    if (is_alone && !has_core && placement.machine.empty()) begin_->rank->spread().look(segment(*begin_), rank(*begin_));
    while (!done()) {
      if (pass()) {
        wake_up();
        waiting.progressed();
        continue;
      }
      if (waiting.pause([this] { return begin_->rank->shares_core(); })) continue;
      const int64_t waited = now_us() - waiting.since_us();
      if (one_segment() && !begin_->rank->is_throttled() ? sleep_until_rung() : nap()) {
        waiting.progressed();
        continue;
      }
      for (Queue *queue = begin_; queue != end_; ++queue) {
        if (queue->done()) continue;
        queue->rank->diagnose(waited);
        if (!queue->rank->failure().ok()) fail_rest(*queue);
      }
    }
    wake_up();
  }

 private:
  static Segment &segment(const Queue &queue) { return *queue.rank->context().segment; }
  static uint32_t rank(const Queue &queue) { return queue.rank->context().rank; }

  bool done() const {
    return std::all_of(begin_, end_, [](const Queue &queue) { return queue.done(); });
  }

  // Advances all queues once. True if anything moved.
  bool pass() {
    bool moved = false;
    for (Queue *queue = begin_; queue != end_; ++queue) {
      if (queue->done()) continue;
      while (queue->rank->done() && queue->next < queue->count && queue->rank->failure().ok() &&
             queue->rank->shares().may_begin(queue->collectives[queue->next]->call)) {
        queue->rank->begin(queue->collectives[queue->next++]->call);
        queue->rank->advance();
        moved = true;
      }
      moved |= queue->rank->advance();
      if (!queue->rank->failure().ok()) fail_rest(*queue);
    }
    return moved;
  }

  // All ranks of a thread sleep on one bell; it must lie in memory that all their peers can ring.
  bool one_segment() const {
    return std::all_of(begin_, end_, [this](const Queue &queue) { return &segment(queue) == &segment(*begin_); });
  }

  // True if something moved at the second look: a peer that publishes after that rings. Ranks that were not rung for stay
  // asleep.
  bool sleep_until_rung() {
    Segment &memory = segment(*begin_);
    std::atomic<uint32_t> &bell = memory.line(rank(*begin_)).bell;
    const uint32_t heard = bell.load(std::memory_order_seq_cst);
    if (!asleep_) fall_asleep();
    const bool moved = pass();
    if (!moved) {
      say_what_it_waits_for(heard);
      futex_wait(bell, heard, kSleepUs);
    }
    if (moved || bell.load(std::memory_order_relaxed) != heard) wake_up();
    return moved;
  }

  void fall_asleep() {
    Segment &memory = segment(*begin_);
    for (Queue *queue = begin_; queue != end_; ++queue) memory.set_sleeping(rank(*queue), rank(*begin_));
    memory.board().see(rank(*begin_));
    memory.settle();
    asleep_ = true;
  }

  // A rank that waits for one rank of this thread also waits for all ranks that this thread waits for.
  void say_what_it_waits_for(uint32_t heard) {
    Segment &memory = segment(*begin_);
    std::vector<bool> ranks(memory.nranks());
    std::vector<InCall> calls;
    for (Queue *queue = begin_; queue != end_; ++queue)
      calls.push_back(queue->done() ? InCall() : queue->rank->find_waits(&ranks));
    for (Queue *queue = begin_; queue != end_; ++queue)
      SleepNote(memory, rank(*queue)).say(ranks, rank(*begin_), heard, calls[static_cast<size_t>(queue - begin_)]);
  }

  void wake_up() {
    if (!asleep_) return;
    for (Queue *queue = begin_; queue != end_; ++queue) {
      SleepNote(segment(*queue), rank(*queue)).withdraw();
      segment(*queue).set_awake(rank(*queue));
    }
    asleep_ = false;
  }

  // Communicators with different peers: no single bell serves them all, so poll again soon.
  static bool nap() {
    const timespec time{0, 200000};
    nanosleep(&time, nullptr);
    return false;
  }

  Queue *begin_, *end_;
  bool asleep_ = false;  // its ranks are marked as such
};

void HostBackend::run(std::vector<Submission> &batch) {
  std::vector<std::pair<HostRank *, std::vector<Submission *>>> ranks;
  ranks.reserve(batch.size());
  for (Submission &submission : batch) {
    auto *rank = static_cast<HostRank *>(submission.rank);
    auto found = std::find_if(ranks.begin(), ranks.end(), [&](const auto &entry) { return entry.first == rank; });
    if (found == ranks.end()) found = ranks.insert(ranks.end(), {rank, {}});
    if (!rank->failure().ok())
      submission.status = rank->failure();
    else if (submission.call.work == Work::kNone)
      rank->note_nothing(submission.call);
    else if (submission.call.work == Work::kProgram)
      found->second.push_back(&submission);
    else
      rank->post(submission.call, &submission.status);
  }
  std::vector<Queue> queues;
  queues.reserve(ranks.size());
  for (const auto &[rank, collectives] : ranks) queues.push_back({rank, collectives.data(), collectives.size()});
  if (!queues.empty()) Service(queues.data(), queues.size()).run();
  for (const Queue &queue : queues)
    if (queue.rank->transfers().has_open() && queue.rank->failure().ok()) queue.rank->transfers().end();
}

void HostBackend::run_one(Submission &submission) {
  auto *rank = static_cast<HostRank *>(submission.rank);
  if (!rank->failure().ok()) {
    submission.status = rank->failure();
    return;
  }
  // Start here rather than in the service: peers may be waiting already, and the way there takes time.
  if (submission.call.work == Work::kNone) return rank->note_nothing(submission.call);
  const bool collective = submission.call.work == Work::kProgram;
  const bool begun = !collective || rank->shares().may_begin(submission.call);
  if (collective && begun)
    rank->begin(submission.call);
  else if (!collective)
    rank->post(submission.call, &submission.status);
  rank->advance();
  for (uint32_t i = 0; begun && i < kPolls && rank->cores_are_free() && !rank->idle(); ++i)
    if (!rank->advance()) cpu_relax();
  Submission *const one = &submission;
  Queue queue{rank, &one, collective ? size_t{1} : 0, collective && begun ? size_t{1} : 0};
  if (!rank->failure().ok()) fail_rest(queue);
  if (!queue.done()) Service(&queue, 1).run();
  if (!collective && rank->failure().ok()) rank->transfers().end();
}

}  // namespace

Backend &backend() {
  static HostBackend *const only = new HostBackend;  // outlives every thread
  return *only;
}

}  // namespace collc
