// Orders the calls of one rank one after the other, whatever streams and graphs they are on, because they share slots and
// counters.
//
// Owner: RankLaunches, one per rank, and LaunchOrder, one per device. Threads: the thread that launches; runs() also the
// watcher. begin() waits for a separate stream of the GPU; no other call blocks.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "cuda/driver.h"
#include "cuda/graph_count.h"

namespace collc::cuda {

// The state of a stream at the moment. A launch asks for it once, because each field costs a call of the driver.
struct StreamPlace {
  uint64_t capture = 0;  // a number of the capture that it is in; 0: none
  uint64_t id = 0;       // outside of captures CallOrder::id_of
};

class CallOrder {
 public:
  // Before any call.
  Status begin();
  // After the last one. Returns the event of the latest call that was launched, which is the caller's now; null: never begun.
  Event end();
  // Writes the state of a stream for follow() and note().
  static Status look(Stream stream, StreamPlace *place);
  // Orders `stream` behind the earlier calls: on other streams, and in graphs. In a capture: the graph, whenever it is
  // launched.
  Status follow(Stream stream, const StreamPlace &place);
  // Notes that the latest call is on `stream`.
  Status note(Stream stream, const StreamPlace &place);

  // Returns true if the latest call that was launched has not ended.
  bool runs() const { return called_ && driver().event_query(done_) == kNotReady; }
  // Returns true if calls were captured: they run whenever a graph is launched.
  bool is_in_graph() const { return in_graph_; }
  // The graphs with calls that exist.
  std::shared_ptr<const GraphCount> graphs() const { return graphs_; }

  static Status is_captured(Stream stream, bool *captured);
  static constexpr uint64_t kUnknownStream = 0;

 private:
  // A number of a stream that no other one of the process has or gets; kUnknownStream: this driver knows none. The stream must
  // not be captured.
  static uint64_t id_of(Stream stream);
  // A capture with calls: an event behind the latest one.
  struct Capture {
    uint64_t number;
    Event done;
  };
  static Status find_capture(Stream stream, uint64_t *capture, Graph *graph);
  std::vector<Capture>::iterator find(uint64_t capture);
  void forget_oldest();

  // Recorded by every call, and by graphs with calls whenever they are launched.
  Event done_ = nullptr;
  uint64_t latest_stream_ = kUnknownStream;  // of the latest call outside of graphs
  std::vector<Capture> captures_;            // the newest last; nobody says when one ends
  std::atomic<bool> called_{false};          // kernels may run, of a graph perhaps
  std::atomic<bool> in_graph_{false};
  std::shared_ptr<const GraphCount> graphs_ = std::make_shared<GraphCount>();
};

}  // namespace collc::cuda
