// Streams, events and graphs of the mock driver: the order of launches, and the calls that a capture forbids.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "mock_faults.h"

namespace mock {

constexpr int kUnsupported = 900, kUnjoined = 904, kIsolation = 905, kInvalidated = 901, kIllegalState = 401, kInvalidFlags = 1;

using StreamKey = std::pair<int, void *>;  // device and handle; null: the legacy stream of the device
using Ids = std::set<uint64_t>;            // of launches; with kBegun: all blocks of that one have begun
constexpr uint64_t kBegun = uint64_t{1} << 63;

template <class Launching>
struct Event;

// One operation of a graph: a launch or a copy, in the order of its capture. `after` are positions of earlier ones. With an
// event there is nothing to run: the graph waits for it, or records it, as it is when the graph is launched.
template <class Launching>
struct Node {
  Launching launching;
  StreamKey stream;
  std::set<size_t> after;
  Event<Launching> *waits_for = nullptr, *records = nullptr;
};

// Is kept by the graphs that have a reference to it. The driver calls `destroy` when the last one has gone.
struct UserObject {
  void *pointer;
  void (*destroy)(void *);
  ~UserObject() { destroy(pointer); }
};
using UserObjects = std::vector<std::shared_ptr<const UserObject>>;

template <class Launching>
struct Graph {
  StreamKey origin;
  uint64_t number = 0;  // of its capture
  std::vector<Node<Launching>> nodes;
  // Per stream: the positions of the last operations that the next operation on it waits for.
  std::map<StreamKey, std::set<size_t>> reaches;
  int broken = 0;
  std::vector<uint32_t> ids;  // of the nodes' streams, once it runs
  Ids running;                // its last run: it runs once at a time
  UserObjects objects;

  // The position of a new operation of a stream.
  size_t add(Node<Launching> node) {
    node.after = reaches[node.stream];
    reaches[node.stream] = {nodes.size()};
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

  // Returns the last launches of the nodes at some positions; `ends` has them for every node.
  static Ids ends_of(const std::set<size_t> &positions, const std::vector<Ids> &ends) {
    Ids all;
    for (const size_t at : positions) all.insert(ends[at].begin(), ends[at].end());
    return all;
  }

  // Everything before some positions, with them.
  std::set<size_t> before(const std::set<size_t> &positions) const {
    std::set<size_t> found = positions;
    for (size_t at = nodes.size(); at-- > 0;)
      if (found.count(at) != 0) found.insert(nodes[at].after.begin(), nodes[at].after.end());
    return found;
  }
};

template <class Launching>
struct Event {
  unsigned long long context = 0;     // the id of the context that made it
  Graph<Launching> *graph = nullptr;  // recorded in a capture
  std::set<size_t> reaches;
  Ids launches;  // recorded outside of one
  bool recorded = false;
};

// All state of streams. Launches outside of captures have numbers from 1.
template <class Launching>
class Streams {
 public:
  Graph<Launching> *capturing(const StreamKey &key) const {
    const auto found = captures_.find(key);
    return found == captures_.end() ? nullptr : found->second;
  }
  // For calls that no thread may make while a stream captures in the global mode: breaks the captures.
  int forbidden() {
    if (!rule("captures forbid")) return 0;
    for (auto &[key, graph] : captures_) graph->broken = kUnsupported;
    return captures_.empty() ? 0 : kUnsupported;
  }

  int begin(const StreamKey &key) {
    if (key.second == nullptr) return kUnsupported;
    if (capturing(key) != nullptr) return kIllegalState;
    auto *graph = new Graph<Launching>;
    graph->origin = key;
    graph->number = ++last_capture_;
    captures_[key] = graph;
    return 0;
  }

  int end(const StreamKey &key, Graph<Launching> **made) {
    Graph<Launching> *graph = capturing(key);
    if (graph == nullptr) return kIllegalState;
    for (auto it = captures_.begin(); it != captures_.end();) it = it->second == graph ? captures_.erase(it) : ++it;
    int status = graph->broken;
    if (status == 0 && graph->origin != key) status = kUnjoined;
    if (status == 0 && graph->before(graph->reaches[key]).size() != graph->nodes.size()) status = kUnjoined;
    if (status != 0) graph->objects.clear();
    *made = status == 0 ? graph : nullptr;
    return status;
  }

  // A stream that neither waits for the legacy stream nor holds it up.
  void set_non_blocking(const StreamKey &key) { non_blocking_.insert(key); }
  // A stream is gone, and a new one may have its handle: what it was given goes on under another key.
  void retire(const StreamKey &key, const StreamKey &grave) {
    if (const auto found = waits_.find(key); found != waits_.end()) {
      waits_[grave] = found->second;
      waits_.erase(found);
    }
    if (non_blocking_.erase(key) != 0) non_blocking_.insert(grave);
  }

  // The launches that the next one of a stream has to wait for. The legacy stream of a device waits for all its blocking
  // streams, and they for it.
  Ids waits(const StreamKey &key) {
    Ids before = waits_[key];
    if (non_blocking_.count(key) != 0 || !rule("the legacy stream waits")) return before;
    for (const auto &[other, launches] : waits_)
      if (other.first == key.first && non_blocking_.count(other) == 0 && (key.second == nullptr || other.second == nullptr))
        before.insert(launches.begin(), launches.end());
    return before;
  }
  void set_waits(const StreamKey &key, const Ids &launches) { waits_[key] = launches; }

  // Nodes of the graph that a stream captures; there is no such thing outside of captures.
  int record_external(Event<Launching> &event, const StreamKey &key) {
    Graph<Launching> *graph = capturing(key);
    if (graph == nullptr) return kInvalidFlags;
    graph->add({{}, key, {}, nullptr, &event});
    return 0;
  }
  int wait_external(const StreamKey &key, Event<Launching> &event) {
    Graph<Launching> *graph = capturing(key);
    if (graph == nullptr || !event.recorded || event.graph != nullptr) return kInvalidFlags;
    graph->add({{}, key, {}, &event, nullptr});
    return 0;
  }

  int record(Event<Launching> &event, const StreamKey &key) {
    event = {};
    event.recorded = true;
    event.graph = capturing(key);
    if (event.graph != nullptr)
      event.reaches = event.graph->reaches[key];
    else
      event.launches = waits(key);
    return 0;
  }

  int wait(const StreamKey &key, const Event<Launching> &event) {
    if (!event.recorded) return 0;
    Graph<Launching> *graph = capturing(key);
    if (event.graph == nullptr) {
      // A graph cannot wait for work outside of it.
      if (graph != nullptr) return graph->broken = kIsolation;
      waits_[key].insert(event.launches.begin(), event.launches.end());
      return 0;
    }
    const bool captured =
        std::any_of(captures_.begin(), captures_.end(), [&](const auto &one) { return one.second == event.graph; });
    if (!captured || (graph != nullptr && graph != event.graph)) return kIsolation;
    captures_[key] = event.graph;
    event.graph->reaches[key].insert(event.reaches.begin(), event.reaches.end());
    return 0;
  }

 private:
  std::map<StreamKey, Graph<Launching> *> captures_;
  std::map<StreamKey, Ids> waits_;
  std::set<StreamKey> non_blocking_;
  uint64_t last_capture_ = 0;
};

}  // namespace mock
