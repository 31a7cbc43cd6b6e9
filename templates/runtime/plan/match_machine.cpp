// Finds the state of the library's machine that equals the machine of COLLC_TOPOLOGY, except for names and order of the
// vertices. Only libraries with several states contain this file (collc/build/runtime.py).
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

constexpr const char *kLinksFormat = "collc-links/1";
// Limits of a file: MAX_VERTICES and MAX_LINKS of collc/topology/draft.py, and the bytes of a line.
constexpr size_t kMaxFileVertices = 65536, kMaxFileLinks = 262144, kMaxLinksLineBytes = 4096;
// GPUs and switches that are compared; larger machines match nothing. `collc compile` has the same limit
// (collc/packing/sets/losses.py).
constexpr size_t kMaxVertices = 1024;
// Attempts to map a vertex to another, for all states together. Ends a search that would hold up creation.
constexpr uint64_t kMaxAttempts = 2000000;
// Rounds of color_vertices(). The color of a vertex depends on everything up to this number of links away.
constexpr int kColorRounds = 8;
constexpr size_t kMaxWords = 8;  // of a line that are read; a valid line has at most 5
constexpr size_t kMaxQuoteBytes = 60;  // of the file in an error text
constexpr size_t kMaxPathBytes = 300;  // of the file's path in an error text

const std::vector<std::string> kVertexKinds = {"gpu", "switch", "cpu", "nic"};
const std::vector<std::string> kLinkKinds = {"none", "nvswitch", "nvlink", "xgmi", "c2c", "pcie", "net"};  // as LinkClass
constexpr uint32_t kGpu = 0, kNic = 3;  // indices in kVertexKinds

// Kind and speed (numerator and denominator, in GB/s) of a link.
using Wire = std::tuple<uint32_t, uint64_t, uint64_t>;
// All wires from one vertex to another.
using Bundle = std::vector<Wire>;
// Equal bundles have equal numbers, from 1, in all graphs that are compared.
using BundleNumbers = std::map<Bundle, uint32_t>;

struct Graph {
  std::vector<uint32_t> kinds;  // of each vertex, an index in kVertexKinds
  std::vector<std::map<uint32_t, Bundle>> out;  // by vertex: the bundle to each other vertex
  std::vector<uint32_t> bundles;  // [from * size + to]: the bundle's number; 0 without wires

  size_t size() const { return kinds.size(); }
  uint32_t bundle(size_t from, size_t to) const { return bundles[from * size() + to]; }
  bool are_linked(size_t a, size_t b) const { return bundle(a, b) != 0 || bundle(b, a) != 0; }
};

// A part of a graph.
struct Subgraph {
  Graph graph;
  std::vector<uint32_t> vertices;  // the number of each vertex in the original graph
};

// Fills in `bundles`.
void number_bundles(Graph *graph, BundleNumbers *numbers) {
  graph->bundles.assign(graph->size() * graph->size(), 0);
  for (size_t v = 0; v < graph->size(); ++v)
    for (auto &[to, bundle] : graph->out[v]) {
      std::sort(bundle.begin(), bundle.end());
      graph->bundles[v * graph->size() + to] = numbers->try_emplace(bundle, numbers->size() + 1).first->second;
    }
}

// Returns the part with the vertices that `is_in` selects, in their order. It has no bundle numbers.
Subgraph extract_vertices(const Graph &graph, const std::vector<bool> &is_in) {
  Subgraph part;
  std::vector<uint32_t> new_number(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    if (is_in[v]) {
      new_number[v] = static_cast<uint32_t>(part.vertices.size());
      part.graph.kinds.push_back(graph.kinds[v]);
      part.vertices.push_back(v);
    }
  part.graph.out.resize(part.graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    for (const auto &[to, bundle] : graph.out[v])
      if (is_in[v] && is_in[to]) part.graph.out[new_number[v]][new_number[to]] = bundle;
  return part;
}

// Returns the part that plans can use, as used_part of collc.topology.losses does: without NICs, and without vertices other
// than GPUs that have at most one neighbor, until there are none.
Subgraph used_part(const Graph &graph) {
  std::vector<std::set<uint32_t>> neighbors(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v)
    for (const auto &[to, bundle] : graph.out[v])
      if (graph.kinds[v] != kNic && graph.kinds[to] != kNic) {
        neighbors[v].insert(to);
        neighbors[to].insert(v);
      }
  std::vector<bool> is_used(graph.size());
  for (uint32_t v = 0; v < graph.size(); ++v) is_used[v] = graph.kinds[v] == kGpu || !neighbors[v].empty();
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (uint32_t v = 0; v < graph.size(); ++v) {
      if (!is_used[v] || graph.kinds[v] == kGpu || neighbors[v].size() > 1) continue;
      for (const uint32_t neighbor : neighbors[v]) neighbors[neighbor].erase(v);
      is_used[v] = false;
      has_changed = true;
    }
  }
  return extract_vertices(graph, is_used);
}

// Parses a positive number such as 25, 12.5 or 600/7 into a reduced fraction. Returns false for any other text, and if it
// has more than 19 digits, or more than 18 after the separator.
bool parse_speed(const std::string &word, uint64_t *num, uint64_t *den) {
  const size_t separator = word.find_first_of("./");
  const bool has_separator = separator != std::string::npos;
  const std::string first = word.substr(0, separator), second = has_separator ? word.substr(separator + 1) : "";
  if ((first + second).find_first_not_of("0123456789") != std::string::npos) return false;
  if (first.empty() || (has_separator && second.empty())) return false;
  const bool is_decimal = has_separator && word[separator] == '.';
  const std::string num_digits = is_decimal ? first + second : first;
  if (num_digits.size() > 19 || second.size() > 18) return false;
  *num = std::stoull(num_digits);
  *den = 1;
  if (is_decimal)
    for (size_t i = 0; i < second.size(); ++i) *den *= 10;
  else if (has_separator)
    *den = std::stoull(second);
  if (*num == 0 || *den == 0) return false;
  const uint64_t divisor = std::gcd(*num, *den);
  *num /= divisor;
  *den /= divisor;
  return true;
}

// Returns the first bytes of a text from outside, for a message.
std::string quote(const std::string &text, size_t max_bytes = kMaxQuoteBytes) { return printable(text.substr(0, max_bytes)); }

// The vertices and links of a file in the format collc-links/1 (docs/formats.md).
class LinksFile {
 public:
  Status parse(const std::string &text) {
    size_t end = 0;
    for (size_t number = 1, begin = 0; begin < text.size(); ++number, begin = end + 1) {
      end = std::min(text.find('\n', begin), text.size());
      if (end - begin > kMaxLinksLineBytes)
        return has_format_ ? fail(ncclInvalidUsage, "line %zu is too long", number) : fail_without_format();
      std::istringstream stream(text.substr(begin, end - begin));
      std::vector<std::string> words;
      for (std::string word; stream >> word && word[0] != '#' && words.size() < kMaxWords;) words.push_back(word);
      if (words.empty()) continue;
      if (!has_format_ && words != std::vector<std::string>{kLinksFormat}) return fail_without_format();
      const std::string problem = has_format_ ? add_line(words) : "";
      if (!problem.empty()) return fail(ncclInvalidUsage, "line %zu: %s", number, problem.c_str());
      has_format_ = true;
    }
    if (gpu_names_.empty()) return fail(ncclInvalidUsage, "names no GPU");
    return {};
  }

  const Graph &graph() const { return graph_; }
  const std::vector<std::string> &gpu_names() const { return gpu_names_; }

 private:
  static Status fail_without_format() {
    return fail(ncclInvalidUsage, "does not begin with %s: `collc probe --format links` writes such a file", kLinksFormat);
  }

  // Adds a vertex or a link. Returns an error text, or an empty text.
  std::string add_line(const std::vector<std::string> &words) {
    const auto kind = std::find(kVertexKinds.begin(), kVertexKinds.end(), words[0]);
    if (kind != kVertexKinds.end() && words.size() == 2)
      return add_vertex(static_cast<uint32_t>(kind - kVertexKinds.begin()), words[1]);
    if (words[0] == "link" && words.size() == 5) return add_link(words[1], words[2], words[3], words[4]);
    return "expected `gpu NAME` or `link FROM TO KIND GBPS`, not " + quote(words[0]);
  }

  std::string add_vertex(uint32_t kind, const std::string &name) {
    if (numbers_.size() == kMaxFileVertices) return format("more than %zu vertices", kMaxFileVertices);
    if (!numbers_.emplace(name, numbers_.size()).second) return "`" + quote(name) + "` is given twice";
    graph_.kinds.push_back(kind);
    graph_.out.emplace_back();
    if (kind == kGpu) gpu_names_.push_back(name);
    return "";
  }

  std::string add_link(const std::string &src, const std::string &dst, const std::string &kind_name, const std::string &gbps) {
    const auto from = numbers_.find(src), to = numbers_.find(dst);
    if (from == numbers_.end() || to == numbers_.end() || from == to) return "a link joins two vertices named before";
    const auto kind = std::find(kLinkKinds.begin() + 1, kLinkKinds.end(), kind_name);  // "none" is no kind of a link
    if (kind == kLinkKinds.end()) return "there is no kind of link `" + quote(kind_name) + "`";
    uint64_t num = 0, den = 0;
    if (!parse_speed(gbps, &num, &den)) return "`" + quote(gbps) + "` is no speed such as 25, 12.5 or 600/7";
    if (++nlinks_ > kMaxFileLinks) return format("more than %zu links", kMaxFileLinks);
    graph_.out[from->second][to->second].emplace_back(static_cast<uint32_t>(kind - kLinkKinds.begin()), num, den);
    return "";
  }

  bool has_format_ = false;  // the first line has been read
  size_t nlinks_ = 0;
  std::map<std::string, uint32_t> numbers_;
  Graph graph_;
  std::vector<std::string> gpu_names_;  // in the order of the file
};

// Returns the used part of the library's machine in a state. Lost vertices and links are not in it.
Subgraph machine_in_state(const State &state) {
  Graph machine;
  machine.kinds.assign(tables().machine_vertices, tables().machine_vertices + tables().nmachine_vertices);
  machine.out.resize(machine.size());
  std::vector<bool> is_left(machine.size(), true);
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> new_speeds;  // by link; speed 0/1 for a lost link
  for (uint32_t c = 0; c < state.nchanges; ++c) {
    const Change &change = tables().changes[state.first_change + c];
    if (change.vertex != 0)
      is_left[change.number] = false;
    else
      new_speeds[change.number] = {change.num, change.den};
  }
  for (uint32_t i = 0; i < tables().nmachine_links; ++i) {
    const MachineLink &link = tables().machine_links[i];
    const auto change = new_speeds.find(i);
    const auto [num, den] = change == new_speeds.end() ? std::make_pair(link.num, link.den) : change->second;
    if (num != 0) machine.out[link.src][link.dst].emplace_back(static_cast<uint32_t>(link.kind), num, den);
  }
  const Subgraph remainder = extract_vertices(machine, is_left);
  Subgraph part = used_part(remainder.graph);
  for (uint32_t &vertex : part.vertices) vertex = remainder.vertices[vertex];  // numbers in the whole machine
  return part;
}

// Returns a color per vertex that depends on the vertex's surroundings only: an isomorphism maps each vertex to one of equal
// color.
std::vector<uint64_t> color_vertices(const Graph &graph) {
  std::vector<uint64_t> colors(graph.size());
  for (size_t v = 0; v < graph.size(); ++v) colors[v] = graph.kinds[v] + 1;
  for (int round = 0; round < kColorRounds; ++round) {
    std::vector<uint64_t> next(graph.size());
    for (size_t v = 0; v < graph.size(); ++v) {
      std::vector<std::tuple<uint32_t, uint32_t, uint64_t>> neighbors;  // bundles to and from, color
      for (size_t u = 0; u < graph.size(); ++u)
        if (graph.are_linked(u, v)) neighbors.emplace_back(graph.bundle(v, u), graph.bundle(u, v), colors[u]);
      std::sort(neighbors.begin(), neighbors.end());
      std::string surroundings = std::to_string(colors[v]);
      for (const auto &[to, from, color] : neighbors)
        surroundings += format(" %u %u %llu", to, from, static_cast<unsigned long long>(color));
      next[v] = hash_of(surroundings);
    }
    colors = next;
  }
  return colors;
}

// Searches an isomorphism from one graph to another: it keeps the kinds of vertices and the bundles. Both graphs must have
// bundle numbers from one BundleNumbers.
class GraphMatcher {
 public:
  // `attempts` is reduced by each attempt; at 0 the search ends.
  GraphMatcher(const Graph &from, const Graph &to, uint64_t *attempts) : from_(from), to_(to), attempts_(attempts) {}

  // Sets `image` to the vertex of `to` for each vertex of `from`. Returns false if there is no isomorphism, or if no attempts
  // are left.
  bool match(std::vector<uint32_t> *image) {
    if (from_.size() != to_.size()) return false;
    from_colors_ = color_vertices(from_);
    to_colors_ = color_vertices(to_);
    std::vector<uint64_t> from_sorted = from_colors_, to_sorted = to_colors_;
    std::sort(from_sorted.begin(), from_sorted.end());
    std::sort(to_sorted.begin(), to_sorted.end());
    if (from_sorted != to_sorted) return false;
    image_.assign(from_.size(), 0);
    is_taken_.assign(from_.size(), false);
    order_vertices();
    if (!extend(0)) return false;
    *image = image_;
    return true;
  }

 private:
  // Sets order_: each next vertex is linked to an earlier one if possible, and has the rarest color among these.
  void order_vertices() {
    std::map<uint64_t, size_t> color_counts;
    for (const uint64_t color : from_colors_) ++color_counts[color];
    std::vector<bool> is_linked(from_.size()), is_done(from_.size());
    order_.clear();
    while (order_.size() < from_.size()) {
      const auto priority = [&](uint32_t v) { return std::make_pair(is_linked[v] ? 0 : 1, color_counts[from_colors_[v]]); };
      uint32_t best = 0;
      while (is_done[best]) ++best;
      for (uint32_t v = best + 1; v < from_.size(); ++v)
        if (!is_done[v] && priority(v) < priority(best)) best = v;
      is_done[best] = true;
      order_.push_back(best);
      for (uint32_t v = 0; v < from_.size(); ++v)
        if (from_.are_linked(best, v)) is_linked[v] = true;
    }
  }

  // Maps order_[depth] and all vertices after it, by backtracking.
  bool extend(size_t depth) {
    if (depth == order_.size()) return true;
    const uint32_t v = order_[depth];
    for (uint32_t w = 0; w < to_.size(); ++w) {
      if (is_taken_[w] || to_colors_[w] != from_colors_[v] || from_.kinds[v] != to_.kinds[w]) continue;
      if (*attempts_ == 0) return false;
      --*attempts_;
      if (!keeps_bundles(v, w, depth)) continue;
      image_[v] = w;
      is_taken_[w] = true;
      if (extend(depth + 1)) return true;
      is_taken_[w] = false;
    }
    return false;
  }

  // Returns whether `v` has the same bundles to and from the first `depth` vertices of order_ as `w` has to and from their
  // images.
  bool keeps_bundles(uint32_t v, uint32_t w, size_t depth) const {
    return std::all_of(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(depth), [&](uint32_t u) {
      return from_.bundle(v, u) == to_.bundle(w, image_[u]) && from_.bundle(u, v) == to_.bundle(image_[u], w);
    });
  }

  const Graph &from_;
  const Graph &to_;
  uint64_t *const attempts_;
  std::vector<uint64_t> from_colors_, to_colors_;
  std::vector<uint32_t> order_;  // the vertices of from_ in the order of their mapping
  std::vector<uint32_t> image_;
  std::vector<bool> is_taken_;  // by vertex of to_
};

// Removes links of kinds that the library's machine does not have.
void remove_other_kinds(Graph *graph) {
  std::set<uint32_t> kinds;
  for (uint32_t i = 0; i < tables().nmachine_links; ++i) kinds.insert(static_cast<uint32_t>(tables().machine_links[i].kind));
  for (auto &out : graph->out)
    for (auto entry = out.begin(); entry != out.end();) {
      Bundle &bundle = entry->second;
      const auto is_other = [&kinds](const Wire &wire) { return kinds.count(std::get<0>(wire)) == 0; };
      bundle.erase(std::remove_if(bundle.begin(), bundle.end(), is_other), bundle.end());
      entry = bundle.empty() ? out.erase(entry) : std::next(entry);
    }
}

// Sets `state` and `topology_gpus` of the machine, or `mismatch`.
void find_state(Graph described, LiveMachine *machine) {
  remove_other_kinds(&described);
  Subgraph live = used_part(described);
  if (live.graph.size() > kMaxVertices) {
    machine->mismatch = format("%zu GPUs and switches are more than a library of one server knows", live.graph.size());
    return;
  }
  BundleNumbers bundle_numbers;
  number_bundles(&live.graph, &bundle_numbers);
  std::vector<uint32_t> gpu_number(described.size());  // by vertex: its place among the file's GPUs
  for (uint32_t v = 0, gpu = 0; v < described.size(); ++v)
    if (described.kinds[v] == kGpu) gpu_number[v] = gpu++;
  uint64_t attempts = kMaxAttempts;
  for (uint32_t s = 0; s < tables().nstates; ++s) {
    Subgraph candidate = machine_in_state(tables().states[s]);
    number_bundles(&candidate.graph, &bundle_numbers);
    std::vector<uint32_t> image;
    if (!GraphMatcher(live.graph, candidate.graph, &attempts).match(&image)) continue;
    machine->state = s;
    machine->topology_gpus.assign(machine->gpu_names.size(), 0);
    for (uint32_t v = 0; v < live.graph.size(); ++v)
      if (live.graph.kinds[v] == kGpu) machine->topology_gpus[gpu_number[live.vertices[v]]] = candidate.vertices[image[v]];
    return;
  }
  const char *const text = serves_several_machines()
                               ? "its %zu GPUs and their links are none of the %u machines that this library has plans for"
                               : "its %zu GPUs and their links are neither this library's machine nor that after one of the %u "
                                 "losses it survives";
  machine->mismatch = format(text, machine->gpu_names.size(), tables().nstates - 1);
}

}  // namespace

Status match_machine(const char *path, LiveMachine *machine) {
  std::string text;
  LinksFile file;
  Status status = read_small_file(path, &text);
  if (status.ok()) status = file.parse(text);
  const std::string subject = "COLLC_TOPOLOGY: " + quote(path, kMaxPathBytes) + ": ";
  if (!status.ok()) return fail(status.code(), "%s%s", subject.c_str(), status.text().c_str());
  machine->digest = hash_of(text);
  machine->gpu_names = file.gpu_names();
  if (tables().nstates == 0)
    machine->mismatch = "this library knows no losses of its machine";
  else
    find_state(file.graph(), machine);
  if (!machine->mismatch.empty()) machine->mismatch = subject + machine->mismatch;
  return {};
}

}  // namespace collc
