// The step tables: what the compiler writes and the runtime executes. Plain data, the same for every target.
//
// One library holds one or more `Allocation`s (a set of GPUs with its plan); an allocation holds `Program`s (one
// collective, one root). A program cuts its blocks into shares, and each rank runs channels: loops whose steps move or
// reduce one chunk of a share. The generated source repeats the sizes below in static_asserts.
#pragma once
#include <cstdint>

#include "collc/collectives.h"

namespace collc {

// Part [lo, hi) of block `block`, as lo_num/den and hi_num/den of the block's elements; in a program of several classes of
// links, of what the class `part` carries of the block in this call.
struct Share {
  uint32_t lo_num;
  uint32_t hi_num;
  uint32_t den;
  uint16_t block;
  uint16_t part;  // 0 nvlink, 1 pcie, 2 net; 0 where the program is not cut into classes
};

enum StepFlags : uint8_t {
  kInput = 1,   // the value starts with the rank's own input
  kOutput = 2,  // the value is stored in the rank's output
  kFinal = 4,   // the reduction is complete here: apply the post-operation (avg divides)
  // Of programs inside a switch.
  kSwitchSum = 8,    // the FIFOs that the step receives from are one multicast address, whose sum the switch makes
  kSwitchCopy = 16,  // those that it sends into are one: a store there reaches the slots of all of them
};

// One primitive of one rank. Its FIFO references are refs[first_ref .. first_ref + nrecv + nsend), receives first.
struct Step {
  uint32_t first_ref;
  uint32_t share;  // program-relative
  uint16_t lag;    // runs on chunk iteration - lag
  uint16_t nrecv;
  uint16_t nsend;
  uint8_t flags;
  uint8_t input_at;  // number of received chunks that are reduced before the own input
};

// A FIFO as a step sees it. `fifo` is allocation-relative; `reader` is which of its destinations we are (0 for a send).
struct FifoRef {
  uint32_t fifo;
  uint32_t reader;
};

// Steps [first_step, first_step + nsteps) of one channel on one rank.
struct RankChannel {
  uint32_t first_step;
  uint32_t nsteps;
};

// One way to run one collective: rank_channels[first_rank_channel + rank * nchannels + channel].
// A call of `bytes` (count * element size, NCCL's count) runs the last program of its allocation, collective and root
// with min_bytes <= bytes; programs of one collective and root are sorted by min_bytes, the first has 0. Those with
// 2^64 - 1 run only where a tuning file says so. Programs that differ in chunks alone share their shares and steps.
struct Program {
  uint64_t min_bytes;
  Collective collective;
  int32_t root;  // -1: none
  uint32_t first_share;
  uint32_t nshares;
  uint32_t first_rank_channel;
  uint32_t nchannels;
  uint32_t chunk_bytes;  // at most slot_bytes of the allocation
  uint8_t protocol;      // 0 Simple, 1 LL, 2 LL128
  // What the classes carry of each block, in this proportion, unless a call says otherwise. 0: the program has no share of
  // the class. All 0: it is not cut into classes.
  uint8_t nvlink_weight;
  uint8_t pcie_weight;
  uint8_t net_weight;
};

// The classes of links, from the fastest to the slowest; none: the tables were made without a graph.
enum class LinkClass : uint32_t { kNone, kNvswitch, kNvlink, kXgmi, kC2c, kPcie, kNet };

// A queue from `src` to its readers, fifo_readers[first_reader .. first_reader + nreaders). The way to each of them is the
// element of fifo_routes at the same place. Several that follow each other may have the same slots and take turns in them: chunk
// k of a call is number k * turns + turn of what the call brings there.
struct Fifo {
  uint32_t src;
  uint32_t first_reader;
  uint32_t nreaders;
  LinkClass link;  // the slowest on the ways to its readers
  uint32_t slots;
  uint16_t turn;  // its slots are those of the FIFO so many rows before
  uint16_t turns;  // 1: slots of its own
};

// The links route_links[first .. first + nlinks), which follow each other from a FIFO's source to one of its readers;
// their numbers are relative to the allocation's first_link.
struct Route {
  uint32_t first;
  uint32_t nlinks;
};

// A directed link of the graph of a plan. Its vertices are the ranks, then the forwarders of the set of GPUs.
struct GraphLink {
  uint32_t src;
  uint32_t dst;
  LinkClass kind;
  uint32_t mbps;  // MB/s, rounded, at least 1
};

// A set of GPUs and everything that runs on it. Rank r is on the server rank_servers[first_server + r].
struct Allocation {
  uint32_t nranks;
  uint32_t first_fifo;
  uint32_t nfifos;
  uint32_t first_program;
  uint32_t nprograms;
  uint32_t slots;       // slots of a FIFO, at most; on the host target of every FIFO
  uint32_t slot_bytes;  // bytes of every slot, a multiple of 128
  uint32_t first_server;
  uint32_t first_link;
  uint32_t nlinks;
};

// GPUs set_gpus[first .. first + nranks), ascending, run `allocation`; the i-th of them is its rank set_ranks[first + i].
// GPUs of one class (gpu_classes) may change places freely, and only sets of the first members of each class are listed.
// What only forwards in the plan's graph are the vertices set_forwarders[first_forwarder .. first_forwarder + nforwarders) of
// the machine, whose GPUs come first.
struct GpuSet {
  uint32_t nranks;
  uint32_t first;
  uint32_t allocation;
  uint32_t first_forwarder;
  uint32_t nforwarders;
};

// One directed link of the machine, between vertex numbers, of num/den GB/s.
struct MachineLink {
  uint64_t num;
  uint64_t den;
  uint16_t src;
  uint16_t dst;
  LinkClass kind;
};

// A part of a loss: a vertex with its links (num/den is 0/1 then), or speed of a link, which keeps num/den GB/s.
struct Change {
  uint64_t num;
  uint64_t den;
  uint32_t vertex;  // 1: `number` is a vertex, 0: a link
  uint32_t number;
};

// The machine whole (state 0), or after a loss, and the GPU sets that are served then: a run of gpu_sets.
struct State {
  uint32_t first_set;
  uint32_t nsets;
  uint32_t first_change;
  uint32_t nchanges;
};

// A network card that a plan's network links begin or end at: what its servers' systems know it by.
struct Card {
  uint64_t bus;   // PCI domain << 32 | bus << 16 | device << 8 | function + 1; 0: not known
  uint64_t name;  // of its network interface or RDMA device, the first eight characters, the first one lowest; 0: not known
  uint64_t rest;  // the others
  uint32_t server;   // as in rank_servers
  uint32_t network;  // cards of one number are joined; 0: not known
};

// An array behind the header: its first byte, counted from that of the header, and its elements.
struct Extent {
  uint32_t at;
  uint32_t count;
};

// What the object collc_tables begins with. The object holds no pointers, so the loader changes nothing in it, and
// `collc verify` reads exactly what will run.
struct TablesHeader {
  uint64_t digest;  // of all that follows (table_digest)
  uint64_t bytes;   // of the object, a multiple of 8
  Extent allocations;
  Extent programs;
  Extent shares;
  Extent rank_channels;
  Extent steps;
  Extent refs;
  Extent fifos;
  Extent fifo_readers;
  Extent fifo_routes;
  Extent route_links;
  Extent links;
  Extent rank_servers;
  Extent gpu_sets;
  Extent set_gpus;
  Extent set_ranks;
  Extent set_forwarders;
  Extent gpu_classes;   // of every GPU, state by state
  Extent vertex_names;  // of the topology, GPUs first, UTF-8, each ended by a zero
  // The machine and its states, in libraries that survive losses; empty in others.
  Extent machine_vertices;  // the kind of each: 0 GPU, 1 switch, 2 CPU, 3 NIC
  Extent machine_links;
  Extent states;
  Extent changes;
  Extent gpu_buses;  // of every GPU of the machine, as GpuPlace::bus has it, 0: not known; empty where none is
  Extent cards;      // of a plan over several servers, as far as anything of them is known
};

// The arrays as the runtime sees them.
struct Tables {
  const Allocation *allocations;
  const Program *programs;
  const Share *shares;
  const RankChannel *rank_channels;
  const Step *steps;
  const FifoRef *refs;
  const Fifo *fifos;
  const uint32_t *fifo_readers;
  const Route *fifo_routes;
  const uint32_t *route_links;
  const GraphLink *links;
  const uint32_t *rank_servers;
  const GpuSet *gpu_sets;
  const uint32_t *set_gpus;
  const uint32_t *set_ranks;
  const uint32_t *set_forwarders;
  const uint32_t *gpu_classes;
  const char *vertex_names;
  const uint32_t *machine_vertices;
  const MachineLink *machine_links;
  const State *states;
  const Change *changes;
  const uint64_t *gpu_buses;
  const Card *cards;
  uint32_t nallocations;
  uint32_t ngpu_sets;
  uint32_t ngpus;
  uint32_t nmachine_vertices;
  uint32_t nmachine_links;
  uint32_t nstates;
  uint32_t nbuses;
  uint32_t ncards;
};

}  // namespace collc
