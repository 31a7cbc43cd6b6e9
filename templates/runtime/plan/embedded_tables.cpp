#include "plan/embedded_tables.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

extern "C" {
extern const unsigned char collc_own_tables[] __attribute__((visibility("hidden")));  // a TablesHeader and its arrays
extern const uint64_t collc_own_tables_size __attribute__((visibility("hidden")));
extern const char collc_manifest[];
extern const uint64_t collc_manifest_size;
}

namespace collc {
namespace {

const TablesHeader &header() { return *reinterpret_cast<const TablesHeader *>(collc_own_tables); }

template <class T>
const T *array(const Extent &extent) {
  return reinterpret_cast<const T *>(collc_own_tables + extent.at);
}

Tables locate_tables() {
  const TablesHeader &all = header();
  return {array<Allocation>(all.allocations),
          array<Program>(all.programs),
          array<Share>(all.shares),
          array<RankChannel>(all.rank_channels),
          array<Step>(all.steps),
          array<FifoRef>(all.refs),
          array<Fifo>(all.fifos),
          array<uint32_t>(all.fifo_readers),
          array<Route>(all.fifo_routes),
          array<uint32_t>(all.route_links),
          array<GraphLink>(all.links),
          array<uint32_t>(all.rank_servers),
          array<GpuSet>(all.gpu_sets),
          array<uint32_t>(all.set_gpus),
          array<uint32_t>(all.set_ranks),
          array<uint32_t>(all.set_forwarders),
          array<uint32_t>(all.gpu_classes),
          array<char>(all.vertex_names),
          array<uint32_t>(all.machine_vertices),
          array<MachineLink>(all.machine_links),
          array<State>(all.states),
          array<Change>(all.changes),
          array<uint64_t>(all.gpu_buses),
          array<Card>(all.cards),
          all.allocations.count,
          all.gpu_sets.count,
          all.gpu_classes.count / std::max(all.states.count, 1u),
          all.machine_vertices.count,
          all.machine_links.count,
          all.states.count,
          all.gpu_buses.count,
          all.cards.count};
}

// Computes the digest as `digest` of collc.checker.layout does. Each step is a bijection of `value` for a given word, so a
// change of a single word always changes the result.
uint64_t table_digest() {
  uint64_t value = 0xcbf29ce484222325;
  for (uint64_t at = offsetof(TablesHeader, bytes); at < collc_own_tables_size; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, collc_own_tables + at, sizeof word);
    value = (value ^ word) * 0x9e3779b97f4a7c15;
    value = value >> 35 | value << 29;
  }
  return value;
}

}  // namespace

const Tables &tables() {
  static const Tables instance = locate_tables();
  return instance;
}

Status check_tables() {
  static const bool is_intact = header().bytes == collc_own_tables_size && table_digest() == header().digest;
  if (is_intact) return {};
  return fail(ncclInternalError,
              "the tables of this library are damaged: compile it again (`collc verify` says what is wrong)");
}

uint64_t build_fingerprint() {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (uint64_t i = 0; i < collc_manifest_size; ++i)
    hash = (hash ^ static_cast<unsigned char>(collc_manifest[i])) * 0x100000001b3;
  return hash;
}

// State 0 of such a library has no GPU sets. Each further state is one of the machines, complete or after a loss.
bool serves_several_machines() { return tables().nstates > 1 && tables().states[0].nsets == 0; }

}  // namespace collc
