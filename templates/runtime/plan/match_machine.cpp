#include "plan/live_machine.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <tuple>

#include "base/file.h"
#include "base/machine.h"
#include "plan/embedded_tables.h"

namespace collc {
namespace {

constexpr const char *kFormat = "collc-links/1";
// Vertices and links of a file, as MAX_VERTICES and MAX_LINKS of collc/topology/draft.py.
constexpr size_t kMostNames = 65536, kMostLinks = 262144;
constexpr size_t kMostLine = 4096;        // bytes
constexpr size_t kMostVertices = 1024;   // that links of the library's kinds join
constexpr uint64_t kMostTries = 2000000;  // of putting a vertex somewhere, for all states together
const std::vector<std::string> kVertexKinds = {"gpu", "switch", "cpu", "nic"};
const std::vector<std::string> kLinkKinds = {"none", "nvswitch", "nvlink", "xgmi", "c2c", "pcie", "net"};  // as LinkClass
constexpr uint32_t kGpu = 0, kNic = 3;

// Kind and speed of a link.
using Wire = std::tuple<uint32_t, uint64_t, uint64_t>;

// A machine as a table: the wires from each vertex to each other one, as a number that stands for all of them together.
struct Graph {
  std::vector<uint32_t> kinds;
  std::vector<std::map<uint32_t, std::vector<Wire>>> out;  // by vertex: to whom, over what
  std::vector<uint32_t> wires;                             // [from * size + to]; 0: none

  size_t size() const { return kinds.size(); }
  uint32_t wire(size_t from, size_t to) const { return wires[from * size() + to]; }
};

// Numbers for bundles of wires, the same in all graphs that are compared.
using Bundles = std::map<std::vector<Wire>, uint32_t>;

void number_wires(Graph *graph, Bundles *bundles) {
  graph->wires.assign(graph->size() * graph->size(), 0);
  for (size_t v = 0; v < graph->size(); ++v)
    for (auto &[to, bundle] : graph->out[v]) {
      std::sort(bundle.begin(), bundle.end());
      graph->wires[v * graph->size() + to] = bundles->try_emplace(bundle, bundles->size() + 1).first->second;
    }
}

// Leaves out the vertices that `kept` does not name, in order; `numbers` says which are left.
Graph keep_vertices(const Graph &graph, const std::vector<bool> &kept, std::vector<uint32_t> *numbers) {
  Graph left;
  std::vector<uint32_t> place(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    if (kept[v]) {
      place[v] = static_cast<uint32_t>(left.kinds.size());
      left.kinds.push_back(graph.kinds[v]);
      if (numbers != nullptr) numbers->push_back(v);
    }
  left.out.resize(left.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    for (const auto &[to, bundle] : graph.out[v])
      if (kept[v] && kept[to]) left.out[place[v]][place[to]] = bundle;
  return left;
}

// As used_part of collc.topology.losses: no NICs, and nothing that hangs on a single neighbour.
std::vector<bool> useful(const Graph &graph) {
  std::vector<std::set<uint32_t>> near(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    for (const auto &[to, bundle] : graph.out[v])
      if (graph.kinds[v] != kNic && graph.kinds[to] != kNic) {
        near[v].insert(to);
        near[to].insert(v);
      }
  std::vector<bool> kept(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v) kept[v] = graph.kinds[v] == kGpu || !near[v].empty();
  for (bool again = true; again;) {
    again = false;
    for (uint32_t v = 0; v < graph.size(); ++v) {
      if (!kept[v] || graph.kinds[v] == kGpu || near[v].size() > 1) continue;
      for (const uint32_t other : near[v]) near[other].erase(v);
      kept[v] = false;
      again = true;
    }
  }
  return kept;
}

// Digits, digits with a point, or a fraction: 25, 12.5, 600/7.
bool read_speed(const std::string &word, uint64_t *num, uint64_t *den) {
  const size_t cut = word.find_first_of("./");
  const std::string first = word.substr(0, cut), second = cut == std::string::npos ? "" : word.substr(cut + 1);
  const bool digits = (first + second).find_first_not_of("0123456789") == std::string::npos;
  if (!digits || first.empty() || (cut != std::string::npos && second.empty()) || first.size() + second.size() > 38)
    return false;
  const bool point = cut != std::string::npos && word[cut] == '.';
  const std::string above = point ? first + second : first;
  if (above.size() > 19 || second.size() > 19) return false;
  *num = std::stoull(above);
  *den = 1;
  if (point)
    for (size_t i = 0; i < second.size(); ++i) *den *= 10;
  else if (cut != std::string::npos)
    *den = std::stoull(second);
  if (*num == 0 || *den == 0 || second.size() > 18) return false;
  const uint64_t common = std::gcd(*num, *den);
  *num /= common;
  *den /= common;
  return true;
}

std::string shown(const std::string &text, size_t most = 60) { return printable(text.substr(0, most)); }

// The vertices and links of a file.
class Description {
 public:
  Status read(const std::string &text) {
    size_t end = 0;
    for (size_t number = 1, at = 0; at < text.size(); ++number, at = end + 1) {
      end = std::min(text.find('\n', at), text.size());
      if (end - at > kMostLine) return fail(ncclInvalidUsage, "line %zu is too long", number);
      std::istringstream stream(text.substr(at, end - at));
      std::vector<std::string> words;
      for (std::string word; stream >> word && word[0] != '#' && words.size() < 8;) words.push_back(word);
      if (words.empty()) continue;
      if (!begun_ && words != std::vector<std::string>{kFormat})
        return fail(ncclInvalidUsage, "does not begin with %s: `collc probe --format links` writes such a file", kFormat);
      const std::string problem = begun_ ? take(words) : "";
      if (!problem.empty()) return fail(ncclInvalidUsage, "line %zu: %s", number, problem.c_str());
      begun_ = true;
    }
    if (gpus.empty()) return fail(ncclInvalidUsage, "names no GPU");
    return {};
  }

  Graph graph;
  std::vector<std::string> gpus;

 private:
  std::string take(const std::vector<std::string> &words) {
    const auto kind = std::find(kVertexKinds.begin(), kVertexKinds.end(), words[0]);
    if (kind != kVertexKinds.end() && words.size() == 2) {
      if (numbers_.size() == kMostNames) return format("more than %zu vertices", kMostNames);
      if (!numbers_.emplace(words[1], numbers_.size()).second) return "`" + shown(words[1]) + "` is given twice";
      graph.kinds.push_back(static_cast<uint32_t>(kind - kVertexKinds.begin()));
      graph.out.emplace_back();
      if (graph.kinds.back() == kGpu) gpus.push_back(words[1]);
      return "";
    }
    if (words[0] != "link" || words.size() != 5)
      return "expected `gpu NAME` or `link FROM TO KIND GBPS`, not " + shown(words[0]);
    const auto from = numbers_.find(words[1]), to = numbers_.find(words[2]);
    if (from == numbers_.end() || to == numbers_.end() || from == to) return "a link joins two vertices named before";
    const auto what = std::find(kLinkKinds.begin(), kLinkKinds.end(), words[3]);
    uint64_t num = 0, den = 0;
    if (what == kLinkKinds.begin() || what == kLinkKinds.end()) return "there is no kind of link `" + shown(words[3]) + "`";
    if (!read_speed(words[4], &num, &den)) return "`" + shown(words[4]) + "` is no speed such as 25, 12.5 or 600/7";
    if (++links_ > kMostLinks) return format("more than %zu links", kMostLinks);
    graph.out[from->second][to->second].emplace_back(static_cast<uint32_t>(what - kLinkKinds.begin()), num, den);
    return "";
  }

  size_t links_ = 0;
  bool begun_ = false;
  std::map<std::string, uint32_t> numbers_;
};

// The library's machine in a state; GPUs that are lost are not in it.
Graph machine_in(const State &state, std::vector<uint32_t> *numbers) {
  Graph whole;
  whole.kinds.assign(tables().machine_vertices, tables().machine_vertices + tables().nmachine_vertices);
  whole.out.resize(whole.size());
  std::vector<bool> kept(whole.size(), true);
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> speeds;
  for (uint32_t c = 0; c < state.nchanges; ++c) {
    const Change &change = tables().changes[state.first_change + c];
    if (change.vertex != 0)
      kept[change.number] = false;
    else
      speeds[change.number] = {change.num, change.den};
  }
  for (uint32_t i = 0; i < tables().nmachine_links; ++i) {
    const MachineLink &link = tables().machine_links[i];
    const auto changed = speeds.find(i);
    const auto [num, den] = changed == speeds.end() ? std::make_pair(link.num, link.den) : changed->second;
    if (num != 0) whole.out[link.src][link.dst].emplace_back(static_cast<uint32_t>(link.kind), num, den);
  }
  const Graph standing = keep_vertices(whole, kept, numbers);
  std::vector<uint32_t> left;
  const Graph graph = keep_vertices(standing, useful(standing), &left);
  for (uint32_t &v : left) v = (*numbers)[v];
  *numbers = left;
  return graph;
}

// A number for what each vertex sees around it, the same wherever two vertices may be exchanged.
std::vector<uint64_t> colours(const Graph &graph) {
  std::vector<uint64_t> colour(graph.size());
  for (size_t v = 0; v < graph.size(); ++v) colour[v] = graph.kinds[v] + 1;
  for (int round = 0; round < 8; ++round) {
    std::vector<uint64_t> next(graph.size());
    for (size_t v = 0; v < graph.size(); ++v) {
      std::string seen = std::to_string(colour[v]);
      std::vector<std::tuple<uint32_t, uint32_t, uint64_t>> around;
      for (size_t u = 0; u < graph.size(); ++u)
        if (graph.wire(v, u) != 0 || graph.wire(u, v) != 0) around.emplace_back(graph.wire(v, u), graph.wire(u, v), colour[u]);
      std::sort(around.begin(), around.end());
      for (const auto &[to, from, other] : around)
        seen += format(" %u %u %llu", to, from, static_cast<unsigned long long>(other));
      next[v] = hash_of(seen);
    }
    colour = next;
  }
  return colour;
}

// Looks for an isomorphism: a vertex of `there` for every one of `here`, with equal kinds and wires.
class Matcher {
 public:
  Matcher(const Graph &here, const Graph &there, uint64_t *tries) : here_(here), there_(there), tries_(tries) {}

  bool match(std::vector<uint32_t> *image) {
    if (here_.size() != there_.size()) return false;
    mine_ = colours(here_);
    theirs_ = colours(there_);
    std::vector<uint64_t> one = mine_, other = theirs_;
    std::sort(one.begin(), one.end());
    std::sort(other.begin(), other.end());
    if (one != other) return false;
    image_.assign(here_.size(), 0);
    taken_.assign(here_.size(), false);
    order();
    if (!extend(0)) return false;
    *image = image_;
    return true;
  }

 private:
  // First vertices of rare colours, then always one with a wire to those before where there is one.
  void order() {
    std::map<uint64_t, size_t> count;
    for (const uint64_t colour : mine_) ++count[colour];
    std::vector<bool> near(here_.size()), done(here_.size());
    order_.clear();
    while (order_.size() < here_.size()) {
      uint32_t best = 0;
      bool any = false;
      for (uint32_t v = 0; v < here_.size(); ++v) {
        if (done[v]) continue;
        const auto rank = [&](uint32_t u) { return std::make_pair(near[u] ? 0 : 1, count[mine_[u]]); };
        if (!any || rank(v) < rank(best)) best = v;
        any = true;
      }
      done[best] = true;
      order_.push_back(best);
      for (uint32_t u = 0; u < here_.size(); ++u)
        if (here_.wire(best, u) != 0 || here_.wire(u, best) != 0) near[u] = true;
    }
  }

  bool extend(size_t depth) {
    if (depth == order_.size()) return true;
    const uint32_t v = order_[depth];
    for (uint32_t w = 0; w < there_.size(); ++w) {
      if (taken_[w] || theirs_[w] != mine_[v] || here_.kinds[v] != there_.kinds[w]) continue;
      if (*tries_ == 0) return false;
      --*tries_;
      bool fits = true;
      for (size_t d = 0; d < depth && fits; ++d) {
        const uint32_t u = order_[d];
        fits = here_.wire(v, u) == there_.wire(w, image_[u]) && here_.wire(u, v) == there_.wire(image_[u], w);
      }
      if (!fits) continue;
      image_[v] = w;
      taken_[w] = true;
      if (extend(depth + 1)) return true;
      taken_[w] = false;
    }
    return false;
  }

  const Graph &here_;
  const Graph &there_;
  uint64_t *tries_;
  std::vector<uint64_t> mine_, theirs_;
  std::vector<uint32_t> order_, image_;
  std::vector<bool> taken_;
};

// Leaves out the links of kinds that no plan of the library uses.
void keep_kinds(Graph *graph) {
  std::set<uint32_t> used;
  for (uint32_t i = 0; i < tables().nmachine_links; ++i) used.insert(static_cast<uint32_t>(tables().machine_links[i].kind));
  for (auto &out : graph->out)
    for (auto at = out.begin(); at != out.end();) {
      std::vector<Wire> &bundle = at->second;
      bundle.erase(std::remove_if(bundle.begin(), bundle.end(), [&](const Wire &w) { return used.count(std::get<0>(w)) == 0; }),
                   bundle.end());
      at = bundle.empty() ? out.erase(at) : std::next(at);
    }
}

void find_state(const Description &described, LiveMachine *found) {
  Graph all = described.graph;
  keep_kinds(&all);
  std::vector<uint32_t> here;
  Graph seen = keep_vertices(all, useful(all), &here);
  if (seen.size() > kMostVertices) {
    found->mismatch = format("%zu GPUs and switches are more than a library of one server knows", seen.size());
    return;
  }
  Bundles bundles;
  number_wires(&seen, &bundles);
  std::vector<uint32_t> gpu_number(all.size());  // GPUs by their place among GPUs
  for (uint32_t v = 0, g = 0; v < all.size(); ++v)
    if (all.kinds[v] == kGpu) gpu_number[v] = g++;
  uint64_t tries = kMostTries;
  for (uint32_t s = 0; s < tables().nstates; ++s) {
    std::vector<uint32_t> there, image;
    Graph known = machine_in(tables().states[s], &there);
    number_wires(&known, &bundles);
    if (!Matcher(seen, known, &tries).match(&image)) continue;
    found->state = s;
    found->topology_gpus.assign(found->gpu_names.size(), 0);
    for (uint32_t v = 0; v < seen.size(); ++v)
      if (seen.kinds[v] == kGpu) found->topology_gpus[gpu_number[here[v]]] = there[image[v]];
    return;
  }
  found->mismatch = serves_several_machines()
                        ? format("its %zu GPUs and their links are none of the %u machines that this library has plans for",
                                 found->gpu_names.size(), tables().nstates - 1)
                        : format(
                              "its %zu GPUs and their links are neither this library's machine nor that after one of the %u "
                              "losses it survives",
                              found->gpu_names.size(), tables().nstates - 1);
}

}  // namespace

Status match_machine(const char *path, LiveMachine *found) {
  std::string text;
  Description described;
  Status status = read_small_file(path, &text);
  if (status.ok()) status = described.read(text);
  if (!status.ok()) return fail(status.code(), "COLLC_TOPOLOGY: %s: %s", shown(path, 300).c_str(), status.text().c_str());
  found->digest = hash_of(text);
  found->gpu_names = described.gpus;
  if (tables().nstates == 0)
    found->mismatch = "this library knows no losses of its machine";
  else
    find_state(described, found);
  if (!found->mismatch.empty()) found->mismatch = "COLLC_TOPOLOGY: " + shown(path, 300) + ": " + found->mismatch;
  return {};
}

}  // namespace collc
