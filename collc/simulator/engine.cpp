// The event-driven engine of collc.simulator in C++. engine.py defines what it computes; a test compares both to the last
// digit that their sums of doubles share.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = 1e-9;
// More than the rounding error of a product, and the relative difference that a sum of doubles cannot represent.
constexpr double kSurely = 1 + 1e-14, kUntold = 1e-15;
enum Kind : int32_t { kStart, kArrive, kCredit };
enum Why : int32_t { kByLaunch, kByOrder, kByData, kBySlot };

}  // namespace

extern "C" {

// Mirrors collc.simulator.compiled._Case. All arrays belong to the caller.
struct CollcCase {
  int32_t nloops, nfifos, nlinks, slots;
  double launch, step, credit;
  const double *capacity;
  const int32_t *loop_first_step;  // nloops + 1
  const int32_t *step_share, *step_lag;
  const double *step_rate, *step_launch;
  const int32_t *step_first_recv;  // steps + 1
  const int32_t *step_first_send;  // steps + 1
  const int32_t *recvs, *sends;
  const int32_t *fifo_writer, *fifo_reader;
  const double *fifo_delay;
  const int32_t *fifo_first_link;  // nfifos + 1
  const int32_t *fifo_links, *fifo_weights;  // how often the FIFO's flow counts on each link
  const int32_t *fifo_copies;                // and on its thread block
  const double *fifo_credit;
  const int32_t *fifo_behind;  // the FIFO whose slot a chunk keeps until it has left this one; -1: none
  const int32_t *fifo_queue;   // the FIFO whose slots this FIFO uses; -1: it has slots
  const int32_t *share_chunks;
  const double *share_each, *share_last;
};

// One row per executed step, in order of its end; capacity is the caller's.
struct CollcOutcome {
  double time;
  int64_t executed;
  double *link_bytes;
  int32_t *loop, *step, *chunk, *why;
  int64_t *cause;
  double *begin, *end;
};
}

namespace {

struct Flow {
  int32_t loop;
  int32_t fifo;  // -1: local
  bool block;
  double left, total, rate;
};

struct Event {
  double at;
  int64_t sequence;
  int32_t kind, which;
  int64_t cause;
  bool operator>(const Event &other) const { return std::tie(at, sequence) > std::tie(other.at, other.sequence); }
};

class Engine {
 public:
  Engine(const CollcCase &given, CollcOutcome &made)
      : c(given), out(made), loops(given.nloops), fifos(given.nfifos), users(given.nlinks + given.nloops) {
    now = c.launch;
    end = c.nloops ? c.launch : 0.0;
    for (int32_t l = 0; l < c.nloops; ++l) {
      for (int32_t s = c.loop_first_step[l]; s < c.loop_first_step[l + 1]; ++s) {
        const int32_t chunks = c.share_chunks[c.step_share[s]];
        if (chunks) loops[l].iterations = std::max(loops[l].iterations, int64_t{chunks} + c.step_lag[s]);
      }
      loops[l].at = c.loop_first_step[l];
    }
    for (int32_t f = 0; f < c.nfifos; ++f)
      if (c.fifo_behind[f] >= 0) fifos[c.fifo_behind[f]].kept = true;
    capacity.assign(c.capacity, c.capacity + c.nlinks);
    capacity.resize(c.nlinks + c.nloops, kInf);
    left = capacity;
    count.assign(capacity.size(), 0);
    users_of.assign(capacity.size(), 0);
    seen.assign(capacity.size(), 0);
  }

  void run() {
    for (int32_t l = 0; l < c.nloops; ++l) {
      advance(l, -1, kByLaunch);
      resume();
    }
    while (!heap.empty() || !flows.empty()) move();
    out.time = end;
    out.executed = executed;
  }

 private:
  struct LoopState {
    int64_t iteration = 0, iterations = 0;
    int32_t at = 0, pending = 0, why = kByLaunch;
    bool busy = false;
    double began = 0.0;
    int64_t last = -1, cause = -1;
  };
  struct FifoState {
    int64_t written = 0, freed = 0, arrived = 0, read = 0;
    bool kept = false;  // until its chunks have left the FIFO that is before it
  };

  FifoState &queue(int32_t f) { return fifos[c.fifo_queue[f] < 0 ? f : c.fifo_queue[f]]; }

  template <class Visit>
  void each_resource(const Flow &flow, Visit visit) const {
    if (flow.fifo >= 0)
      for (int32_t i = c.fifo_first_link[flow.fifo]; i < c.fifo_first_link[flow.fifo + 1]; ++i)
        visit(c.fifo_links[i], c.fifo_weights[i]);
    if (flow.block) visit(c.nlinks + flow.loop, flow.fifo >= 0 ? c.fifo_copies[flow.fifo] : 1);
  }

  // Max-min fairness by water-filling; the tightest resource first, the lower number on a tie. Only flows that share
  // resources, directly or through others, with a flow that came or went since are filled again: rates elsewhere stay.
  void fill() {
    touched.clear();
    for (size_t i = 0; i < dirty.size(); ++i) reach(dirty[i]);
    dirty.clear();
    for (size_t i = 0; i < touched.size(); ++i) {
      const int32_t r = touched[i];
      left[r] = capacity[r];
      count[r] = users_of[r];
      for (const int32_t f : users[r]) {
        if (pool[f].rate == kInf) continue;
        pool[f].rate = kInf;
        each_resource(pool[f], [&](int32_t other, int32_t) { reach(other); });
      }
    }
    for (const int32_t r : touched) seen[r] = false;
    for (;;) {
      int32_t tight = -1;
      double share = kInf;
      size_t kept = 0;
      for (const int32_t r : touched) {
        if (!count[r]) continue;
        touched[kept++] = r;
        const double mine = left[r] / count[r];
        if (mine < share || (mine == share && mine != kInf && r < tight)) {
          share = mine;
          tight = r;
        }
      }
      touched.resize(kept);
      if (tight < 0) break;
      for (const int32_t f : users[tight]) {
        if (pool[f].rate != kInf) continue;
        pool[f].rate = share;
        each_resource(pool[f], [&](int32_t r, int32_t weight) {
          left[r] = std::max(0.0, left[r] - share * weight);
          count[r] -= weight;
        });
      }
    }
  }

  void reach(int32_t r) {
    if (seen[r]) return;
    seen[r] = true;
    touched.push_back(r);
  }

  void add(const Flow &flow) {
    int32_t f = static_cast<int32_t>(pool.size());
    if (unused.empty()) {
      pool.push_back(flow);
    } else {
      f = unused.back();
      unused.pop_back();
      pool[f] = flow;
    }
    flows.push_back(f);
    if (flow.block) capacity[c.nlinks + flow.loop] = c.step_rate[loops[flow.loop].at];
    each_resource(flow, [&](int32_t r, int32_t weight) {
      users[r].push_back(f);
      users_of[r] += weight;
      dirty.push_back(r);
    });
  }

  void remove(int32_t f) {
    each_resource(pool[f], [&](int32_t r, int32_t weight) {
      users[r].erase(std::find(users[r].begin(), users[r].end(), f));
      users_of[r] -= weight;
      dirty.push_back(r);
    });
    unused.push_back(f);
  }

  void move() {
    if (!dirty.empty()) fill();
    double soonest = kInf;
    // Products tell most flows that are not the first to end: divisions take several times as long.
    for (const int32_t f : flows)
      if (!(pool[f].left >= pool[f].rate * (soonest * kSurely))) soonest = std::min(soonest, pool[f].left / pool[f].rate);
    const double at = std::min(now + soonest, heap.empty() ? kInf : heap.top().at);
    const double span = at - now;
    now = at;
    done.clear();
    size_t kept = 0;
    const double blink = now * kUntold;
    for (const int32_t f : flows) {
      Flow &flow = pool[f];
      flow.left -= flow.rate != kInf ? flow.rate * span : flow.left;
      // The rest may take less time than a step of `now`; without this test the flow would never end.
      if (flow.left <= kEpsilon * flow.total || (flow.left <= flow.rate * blink && now + flow.left / flow.rate <= now)) {
        done.push_back(flow.loop);
        remove(f);
      } else {
        flows[kept++] = f;
      }
    }
    flows.resize(kept);
    for (const int32_t l : done) {
      if (!--loops[l].pending) {
        finish(l);
        resume();
      }
    }
    while (!heap.empty() && heap.top().at <= now * (1 + kEpsilon)) {
      const Event event = heap.top();
      heap.pop();
      if (event.kind == kStart) {
        start(event.which);
      } else if (event.kind == kArrive) {
        ++queue(event.which).arrived;
        advance(c.fifo_reader[event.which], event.cause, kByData);
      } else {
        for (const int32_t f : {event.which, c.fifo_behind[event.which]}) {
          if (f < 0) continue;
          ++queue(f).freed;
          advance(c.fifo_writer[f], event.cause, kBySlot);
        }
      }
      resume();
    }
  }

  void resume() {
    while (!ended.empty()) {
      const int32_t l = ended.back();
      ended.pop_back();
      advance(l, loops[l].last, kByOrder);
    }
  }

  void next(int32_t l) {
    if (++loops[l].at == c.loop_first_step[l + 1]) {
      loops[l].at = c.loop_first_step[l];
      ++loops[l].iteration;
    }
  }

  void advance(int32_t l, int64_t cause, int32_t why) {
    LoopState &loop = loops[l];
    if (loop.busy) return;
    for (;; next(l)) {
      if (loop.iteration >= loop.iterations) return;
      const int64_t chunk = loop.iteration - c.step_lag[loop.at];
      if (chunk >= 0 && chunk < c.share_chunks[c.step_share[loop.at]]) break;
    }
    const int32_t s = loop.at;
    for (int32_t i = c.step_first_recv[s]; i < c.step_first_recv[s + 1]; ++i)
      if (queue(c.recvs[i]).arrived <= queue(c.recvs[i]).read) return;
    for (int32_t i = c.step_first_send[s]; i < c.step_first_send[s + 1]; ++i)
      if (queue(c.sends[i]).written - queue(c.sends[i]).freed >= c.slots) return;
    for (int32_t i = c.step_first_recv[s]; i < c.step_first_recv[s + 1]; ++i) ++queue(c.recvs[i]).read;
    for (int32_t i = c.step_first_send[s]; i < c.step_first_send[s + 1]; ++i) ++queue(c.sends[i]).written;
    loop.busy = true;
    loop.began = now;
    loop.cause = cause;
    loop.why = why;
    if (c.step + c.step_launch[s] > 0) {
      push(c.step + c.step_launch[s], kStart, l, -1);
    } else {
      start(l);
    }
  }

  void start(int32_t l) {
    LoopState &loop = loops[l];
    const int32_t s = loop.at, share = c.step_share[s];
    const bool final_chunk = loop.iteration - c.step_lag[s] == c.share_chunks[share] - 1;
    const double size = final_chunk ? c.share_last[share] : c.share_each[share];
    const bool block = c.step_rate[s] != kInf;
    loop.pending = 0;
    for (int32_t i = c.step_first_send[s]; i < c.step_first_send[s + 1]; ++i) {
      const int32_t f = c.sends[i], first = c.fifo_first_link[f], last = c.fifo_first_link[f + 1];
      for (int32_t k = first; k < last; ++k) out.link_bytes[c.fifo_links[k]] += size * c.fifo_weights[k];
      if ((first < last || block) && size > 0) {
        add({l, f, block, size, size, 0.0});
        ++loop.pending;
      }
    }
    if (c.step_first_send[s] == c.step_first_send[s + 1] && block && size > 0) {
      add({l, -1, true, size, size, 0.0});
      ++loop.pending;
    }
    if (!loop.pending) finish(l);
  }

  void finish(int32_t l) {
    LoopState &loop = loops[l];
    const int32_t s = loop.at;
    const int64_t me = executed++;
    out.loop[me] = l;
    out.step[me] = s - c.loop_first_step[l];
    out.chunk[me] = static_cast<int32_t>(loop.iteration - c.step_lag[s]);
    out.begin[me] = loop.began;
    out.end[me] = now;
    out.cause[me] = loop.cause;
    out.why[me] = loop.why;
    loop.last = me;
    end = std::max(end, now);
    for (int32_t i = c.step_first_recv[s]; i < c.step_first_recv[s + 1]; ++i) {
      const int32_t f = c.recvs[i];
      if (!fifos[f].kept) push(c.credit + c.fifo_credit[f], kCredit, f, me);
    }
    for (int32_t i = c.step_first_send[s]; i < c.step_first_send[s + 1]; ++i)
      push(c.fifo_delay[c.sends[i]], kArrive, c.sends[i], me);
    loop.busy = false;
    next(l);
    ended.push_back(l);
  }

  void push(double delay, int32_t kind, int32_t which, int64_t cause) {
    heap.push({now + delay, sequence++, kind, which, cause});
  }

  const CollcCase &c;
  CollcOutcome &out;
  std::vector<LoopState> loops;
  std::vector<FifoState> fifos;
  std::vector<std::vector<int32_t>> users;
  std::vector<Flow> pool;
  std::vector<int32_t> flows, unused, dirty;  // of the pool: in flight, in order of their start; free; resources to fill
  std::vector<char> seen;
  std::vector<double> capacity, left;
  std::vector<int32_t> users_of, count, touched, done, ended;  // users_of: flows of a resource by their weights
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> heap;
  double now = 0.0, end = 0.0;
  int64_t sequence = 0, executed = 0;
};

}  // namespace

extern "C" void collc_simulate(const CollcCase *given, CollcOutcome *made) { Engine(*given, *made).run(); }
