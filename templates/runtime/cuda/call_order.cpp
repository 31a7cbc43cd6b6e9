#include "cuda/call_order.h"

#include <algorithm>

#include "cuda/fill.h"

namespace collc::cuda {
namespace {

constexpr size_t kMostCaptures = 16;  // at a time

}  // namespace

// 0: the stream is in none.
Status CallOrder::find_capture(Stream stream, uint64_t *capture, Graph *graph) {
  int state = 0;
  uint64_t number = 0;
  COLLC_RETURN_IF_FAILED(
      check(driver().stream_capture_info(stream, &state, &number, graph, nullptr, nullptr), "asking about the stream"));
  *capture = state != 0 ? number : 0;
  return {};
}

Status CallOrder::look(Stream stream, StreamPlace *place) {
  COLLC_RETURN_IF_FAILED(find_capture(stream, &place->capture, nullptr));
  place->id = place->capture == 0 ? id_of(stream) : kUnknownStream;
  return {};
}

Status CallOrder::is_captured(Stream stream, bool *captured) {
  uint64_t capture = 0;
  COLLC_RETURN_IF_FAILED(find_capture(stream, &capture, nullptr));
  *captured = capture != 0;
  return {};
}

// Handles are not enough: the handle of a thread's default stream is the same in all threads, and a new stream may have the
// handle of a destroyed one. Must not be called for a stream that is captured: the question breaks the capture (error 900, seen
// with a driver for CUDA 13.0).
uint64_t CallOrder::id_of(Stream stream) {
  uint64_t id = kUnknownStream;
  const Driver &cu = driver();
  return cu.stream_id != nullptr && cu.stream_id(stream, &id) == 0 ? id : kUnknownStream;
}

std::vector<CallOrder::Capture>::iterator CallOrder::find(uint64_t capture) {
  return std::find_if(captures_.begin(), captures_.end(), [capture](const Capture &one) { return one.number == capture; });
}

Status CallOrder::begin() {
  COLLC_RETURN_IF_FAILED(check(driver().event_create(&done_, kEventDisableTiming), "making an event"));
  // A graph may wait for it before any call has recorded it.
  return alone("recording an event", [this](const Driver &cu, Stream stream) { return cu.event_record(done_, stream); });
}

Event CallOrder::end() {
  while (!captures_.empty()) forget_oldest();
  return done_;
}

// Graphs and other calls wait for each other as NCCL's do: a graph begins with a wait for `done_` as it is when the graph is
// launched, and each of its calls records it anew.
Status CallOrder::follow(Stream stream, const StreamPlace &place) {
  if (place.capture == 0) {
    // On the stream of the latest call, unless a graph may have been launched on another one since.
    const bool is_behind = place.id != kUnknownStream && place.id == latest_stream_ && !in_graph_;
    if (!called_ || is_behind) return {};
    return check(driver().stream_wait(stream, done_, 0), "ordering streams");
  }
  const auto known = find(place.capture);
  if (known == captures_.end()) return check(driver().stream_wait(stream, done_, kExternal), "ordering graphs");
  return check(driver().stream_wait(stream, known->done, 0), "ordering streams");
}

Status CallOrder::note(Stream stream, const StreamPlace &place) {
  called_ = true;
  if (place.capture == 0) {
    latest_stream_ = place.id;
    return check(driver().event_record(done_, stream), "recording an event");
  }
  in_graph_ = true;
  COLLC_RETURN_IF_FAILED(check(driver().event_record_with(done_, stream, kExternal), "recording an event in a graph"));
  auto known = find(place.capture);
  if (known == captures_.end()) {
    Graph graph = nullptr;
    uint64_t capture = 0;
    COLLC_RETURN_IF_FAILED(find_capture(stream, &capture, &graph));
    COLLC_RETURN_IF_FAILED(graphs_->add(graph));
    const Uncaptured uncaptured;
    if (captures_.size() == kMostCaptures) forget_oldest();
    Event joint = nullptr;
    COLLC_RETURN_IF_FAILED(check(driver().event_create(&joint, kEventDisableTiming), "making an event"));
    known = captures_.insert(captures_.end(), {place.capture, joint});
  }
  return check(driver().event_record(known->done, stream), "recording an event");
}

void CallOrder::forget_oldest() {
  driver().event_destroy(captures_.front().done);
  captures_.erase(captures_.begin());
}

}  // namespace collc::cuda
