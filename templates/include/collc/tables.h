// The step tables, which the compiler writes and the runtime executes: plain data, equal for every target.
//
// A library contains one or more `Allocation`s (a set of GPUs with its plan). An allocation has `Program`s (one collective,
// one root). A program cuts its blocks into shares, and each rank runs channels: loops whose steps move or reduce one chunk
// of a share. The generated source repeats the sizes of the structs in static_asserts.
#pragma once
#include <cstdint>

#include "collc/collectives.h"

namespace collc {

// The part [lo_num/den, hi_num/den) of the elements of block `block`; in a program with several path classes, of the elements
// that class `part` carries in the call.
struct Share {
  uint32_t lo_num;
  uint32_t hi_num;
  uint32_t den;
  uint16_t block;
  uint16_t part;  // 0 nvlink, 1 pcie, 2 net; 0 if the program is not split into classes
};

enum StepFlags : uint8_t {
  kInput = 1,   // the value starts with the rank's own input
  kOutput = 2,  // the value is stored in the rank's output
  kFinal = 4,   // the reduction is complete here: apply the final operation (avg divides)
  // In programs inside a switch:
  kSwitchSum = 8,    // the FIFOs that the step receives from have one multicast address, and the switch returns their sum
  kSwitchCopy = 16,  // the FIFOs that the step sends into have one multicast address: a store reaches the slots of all
};

// One primitive on one rank. Its FIFO references are refs[first_ref .. first_ref + nrecv + nsend), receives first.
struct Step {
  uint32_t first_ref;
  uint32_t share;  // number in the program
  uint16_t lag;    // the step runs on chunk (iteration - lag)
  uint16_t nrecv;
  uint16_t nsend;
  uint8_t flags;
  uint8_t input_at;  // number of received chunks that are reduced before the rank's own input
};

// A FIFO as a step refers to it. `fifo` is its number in the allocation; `reader` is the index of this rank among the readers
// (0 for a send).
struct FifoRef {
  uint32_t fifo;
  uint32_t reader;
};

// The steps [first_step, first_step + nsteps) of one channel on one rank.
struct RankChannel {
  uint32_t first_step;
  uint32_t nsteps;
};

// A way to run one collective. Its channels are rank_channels[first_rank_channel + rank * nchannels + channel].
// A call of `bytes` (NCCL's count times the element size) runs the last program of its allocation, collective and root with
// min_bytes <= bytes. The programs of one collective and root are sorted by min_bytes, and the first has 0. Programs with
// min_bytes 2^64 - 1 run only if a tuning file selects them. Programs that differ only in chunks have the same shares and
// steps.
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
  // The classes carry each block in this proportion, unless a call has other weights. 0: the program has no share of the
  // class. All 0: it is not split into classes.
  uint8_t nvlink_weight;
  uint8_t pcie_weight;
  uint8_t net_weight;
};

// The classes of links, from the fastest to the slowest. kNone: the tables were made without a graph.
enum class LinkClass : uint32_t { kNone, kNvswitch, kNvlink, kXgmi, kC2c, kPcie, kNet };

// A queue from `src` to its readers, fifo_readers[first_reader .. first_reader + nreaders). The route to each of them is the
// element of fifo_routes at the same index. Several consecutive FIFOs may have the same slots and use them in turn: chunk k
// of a call then is chunk number k * turns + turn of the call in these slots.
struct Fifo {
  uint32_t src;
  uint32_t first_reader;
  uint32_t nreaders;
  LinkClass link;  // the slowest class on the routes to its readers
  uint32_t slots;
  uint16_t turn;  // its slots are the slots of the FIFO this many rows before
  uint16_t turns;  // 1: it has its own slots
};

// The links route_links[first .. first + nlinks), in order from a FIFO's source to one of its readers. The numbers count from
// the allocation's first_link.
struct Route {
  uint32_t first;
  uint32_t nlinks;
};

// A directed link of a plan's graph. Its vertices are the ranks, then the forwarders of the set of GPUs.
struct GraphLink {
  uint32_t src;
  uint32_t dst;
  LinkClass kind;
  uint32_t mbps;  // MB/s, rounded, at least 1
};

// A set of GPUs and everything that runs on it. Rank r is on server rank_servers[first_server + r].
struct Allocation {
  uint32_t nranks;
  uint32_t first_fifo;
  uint32_t nfifos;
  uint32_t first_program;
  uint32_t nprograms;
  uint32_t slots;       // maximum number of slots of a FIFO; on the host target, of every FIFO
  uint32_t slot_bytes;  // bytes of every slot; a multiple of 128
  uint32_t first_server;
  uint32_t first_link;
  uint32_t nlinks;
};

// The GPUs set_gpus[first .. first + nranks), ascending, run `allocation`; the i-th of them is its rank set_ranks[first + i].
// GPUs of one class (gpu_classes) are interchangeable, and only sets of the first members of each class are listed. The
// forwarders in the plan's graph are the vertices set_forwarders[first_forwarder .. first_forwarder + nforwarders) of the
// machine; the machine's GPUs are its first vertices.
struct GpuSet {
  uint32_t nranks;
  uint32_t first;
  uint32_t allocation;
  uint32_t first_forwarder;
  uint32_t nforwarders;
};

// A directed link of the machine between two vertices, with num/den GB/s.
struct MachineLink {
  uint64_t num;
  uint64_t den;
  uint16_t src;
  uint16_t dst;
  LinkClass kind;
};

// A part of a loss: either a vertex with its links (num/den is 0/1 then), or a link, which keeps num/den GB/s.
struct Change {
  uint64_t num;
  uint64_t den;
  uint32_t vertex;  // 1: `number` is a vertex, 0: a link
  uint32_t number;
};

// The complete machine (state 0), or the machine after a loss, and the range of gpu_sets that are served then.
struct State {
  uint32_t first_set;
  uint32_t nsets;
  uint32_t first_change;
  uint32_t nchanges;
};

// A NIC where network links of a plan begin or end, and its names in its server's system.
struct Card {
  uint64_t bus;   // PCI domain << 32 | bus << 16 | device << 8 | function + 1; 0: unknown
  // Network interface or RDMA device: the first eight characters, the first one in the lowest byte; 0: unknown.
  uint64_t name;
  uint64_t rest;  // the other characters
  uint32_t server;   // as in rank_servers
  uint32_t network;  // NICs with the same number are joined; 0: unknown
};

// An array behind the header: its offset from the header in bytes, and its number of elements.
struct Extent {
  uint32_t at;
  uint32_t count;
};

// The start of the object collc_tables. The object has no pointers, so the loader changes nothing in it, and `collc verify`
// reads exactly the bytes that will be used.
struct TablesHeader {
  uint64_t digest;  // of everything that follows (table_digest)
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
  Extent gpu_classes;   // of every GPU, state after state
  Extent vertex_names;  // of the topology, GPUs first, in UTF-8, each terminated by a zero
  // The machine and its states; empty in libraries that do not survive losses.
  Extent machine_vertices;  // type of each vertex: 0 GPU, 1 switch, 2 CPU, 3 NIC
  Extent machine_links;
  Extent states;
  Extent changes;
  Extent gpu_buses;  // of every GPU of the machine, in the form of GpuPlace::bus; 0: unknown; empty if all are unknown
  Extent cards;      // of plans over several servers, if anything is known about them
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
