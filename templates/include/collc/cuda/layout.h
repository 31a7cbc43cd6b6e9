// What the host and the device of the CUDA target agree on: plain structs and the list of kernels.
//
// Memory. Every rank owns one arena on its device. The slots of a FIFO and its tail (chunks written so far) lie in the
// reader's arena, its head (chunks read so far) in the writer's, so that data and flags are pushed over the link and every
// wait polls memory of its own device. Where the two are on different servers each has a half of the FIFO in pinned host
// memory, and a courier moves chunks and counters between the halves. Every protocol has slots and counters of its own; LL and
// LL128 have no tails, for their data carry flags. Heads, tails and positions only grow over the life of a communicator: a
// captured graph may be replayed any number of times, because nothing of a call but its buffers and count is in the arguments.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collc/tables.h"

namespace collc::cuda {

constexpr uint32_t kMaxThreads = 512;     // threads of a block: what the kernels are compiled for
constexpr uint32_t kMinThreads = 64;      // one warp to wait, one to publish
constexpr uint32_t kMaxLaunchRanks = 125; // ranks of one cooperative launch; bounded by 4 KiB of kernel arguments
constexpr uint32_t kMaxPeers = 256;       // FIFO ends that one step may name
constexpr uint32_t kFlagBytes = 128;      // one flag per line, so that pollers do not share it
constexpr uint32_t kWordsPerLine = 8;  // words of 8 bytes in a line that a courier reads (transport/fifo.h)

constexpr uint32_t kShareBytes = 48;      // a ShareRange of step_program.h
constexpr uint32_t kRowBytes = 16;        // a DeviceChannel

constexpr uint32_t kMostMessages = 112;    // in the arguments of a launch of transfers; more lie in a table
constexpr uint32_t kMostExchangeRanks = 28;  // that share a GPU, in such a launch; both bounded by 4 KiB of arguments
constexpr uint32_t kTableMessages = 4096;  // for which every rank has room on its GPU
constexpr uint32_t kSlotHead = 128;       // bytes before the data of a transfer's slot; the first 8 tell the message

// Numbers of Program::protocol.
constexpr uint32_t kSimple = 0, kLL = 1, kLL128 = 2;
constexpr uint32_t kProtocols = 3;

// What the blocks of a rank look up is one piece of its GPU's memory: the rank's state, the channels of its programs, the shares
// of the allocation, its FIFO ends (rank_tables.h of the runtime). Where each begins is the same for all ranks, and a launch says
// it, in units from the state. So no block has to load one table to know where the next one is.
constexpr uint32_t kTableUnit = 16;

// One end of a FIFO as its rank sees it, for one protocol. Steps name ends by number.
struct alignas(16) FifoEnd {
  char *slots;            // first slot, in the reader's arena
  uint64_t *wait_on;      // in our arena: tail for a reader, head for a writer
  uint64_t *publish_to;   // in the peer's arena: head for a reader, tail for a writer
  uint64_t position;      // how many chunks pass through these slots before the next call's first one here
  uint64_t seen;          // what *wait_on was when it was last looked at
  // Of a writer whose reader is on another server: where it leaves how many bytes of each slot a courier has to send, every
  // kWordsPerLine words, over LL below the chunk's number; of a lane of transfers packed as 4 bytes each. Else null.
  uint64_t *chunk_bytes;
  uint32_t nslots;
  uint32_t slot_bytes;    // with their flags
  // Whether the reader's kernels reach the writer's buffers (direct.h): 0 no, kSameAddress, or that plus the number of a
  // reader in another process, which has them elsewhere.
  uint32_t by_address;
  uint32_t turns;         // FIFOs that take turns in these slots: so far apart are the numbers of a call's chunks
};
constexpr uint32_t kSameAddress = 1;
// Behind a tail, in its line, stands a word for each slot: where the chunk lies, or 0 for one that is in the slot.
constexpr uint32_t kMostByAddress = kFlagBytes / sizeof(uint64_t) - 1;  // slots of a FIFO with such words

// What a block copies into its shared memory before its first step, if there is room: so no step waits for a table in memory,
// which is three loads one after another, all of them misses once an acquire has emptied the first-level cache. It is the most
// of any channel of the program: so much room each of them has in the tables, too.
struct CachedTables {
  uint32_t nsteps;
  uint32_t nrefs;  // each names a FIFO end that no other one does
};
constexpr uint32_t kMostCached = 47 << 10;  // bytes of shared memory; more than 48 KiB take few blocks

#if !defined(__CUDACC_RTC__)  // which takes no host code
// Bytes of shared memory that a block needs for a program: addresses and flags of a step's slots, the row of its channel, the
// call's share ranges, and the other tables of its channel.
constexpr uint32_t shared_bytes(uint32_t nshares, const CachedTables &cached = {0, 0}) {
  return static_cast<uint32_t>(kMaxPeers * (sizeof(char *) + sizeof(uint64_t))) + kRowBytes + nshares * kShareBytes +
         cached.nsteps * static_cast<uint32_t>(sizeof(Step)) +
         cached.nrefs * static_cast<uint32_t>(sizeof(FifoEnd) + sizeof(FifoRef));
}
#endif

enum class ReportState : uint32_t { kNone = 0, kAborted = 1, kTimedOut = 2, kDiffers = 3 };
constexpr uint32_t kExchangeProgram = 0xffffffff;  // Report::program of a transfer, whose `peer` is a Message::end

// Where a channel stood when it gave up. In pinned host memory, one per channel; `state` is stored last.
struct Report {
  uint32_t state;
  uint32_t peer;     // the FIFO end that did not move; the host knows whose it is
  uint32_t program;
  uint32_t step;     // within the channel
  uint64_t have;     // the flag's value
  uint64_t need;     // the value that was waited for
};

// What a channel has done in all calls so far, by kernels that are built to count (tally.h): ticks of the multiprocessor's
// clock, and the nanoseconds that all of them together took, which give a tick its length.
enum class Activity : uint32_t { kWaiting = 0, kCopying = 1, kReducing = 2 };
constexpr uint32_t kActivities = 3;
struct ChannelTicks {
  uint64_t spent[kActivities];
  uint64_t ns;
};

// A flag of steps that only kernels know: in place, another step of the channel puts its own result where this one's input is,
// when this rank has all chunks, so that others may still be reading here.
constexpr uint8_t kOverwritten = 128;

// A share, and what divides by its denominator (Inverted of step_program.h).
struct alignas(16) DeviceShare {
  Share share;
  uint64_t inverse;
};

// One channel on one rank. Behind it are its steps, whose references count from the channel's first one, then its references;
// for each of both there is room as CachedTables says. Behind the last reference, if room is left, stands one to kNoEnd.
struct alignas(16) DeviceChannel {
  uint32_t nsteps;
  uint32_t variant;  // of those that are written out (specialised.h); kNoVariant: none
};
constexpr uint32_t kNoVariant = 0xffffffff;
constexpr uint32_t kNoEnd = 0xffffffff;
static_assert(sizeof(DeviceChannel) == kRowBytes && kRowBytes % kTableUnit == 0 && sizeof(Step) % kTableUnit == 0 &&
                  2 * sizeof(FifoRef) == kTableUnit && sizeof(DeviceShare) % kTableUnit == 0 &&
                  sizeof(FifoEnd) % kTableUnit == 0,
              "tables begin at whole units");

// When a channel began a call whose classes of links are timed, and ended it: nanoseconds of the GPU's clock below the last bits
// of the call's number, which tell whose they are. So words need no order among them. In pinned host memory.
struct ChannelTime {
  uint64_t begun;
  uint64_t ended;
};
constexpr uint32_t kTimeBits = 48;
constexpr uint32_t kTimesKept = 8;  // calls

// A rank as the device sees it; written once, when the communicator is made, in front of its tables.
struct alignas(16) RankState {
  Report *reports;                  // pinned host memory, one per channel
  uint32_t *abort_flag;             // pinned host memory: not 0 ends every wait
  uint64_t timeout_ns;              // 0: wait for ever
  uint32_t nranks;
  ChannelTicks *ticks;              // in device memory, one per channel; null unless the kernels count
  ChannelTime *times;               // call number n's of channel c: times[n % kTimesKept * ntimes + c]
  uint32_t ntimes;
  FifoEnd *lane_ends;               // of transfers: lane l of end e is lane_ends[e * nlanes + l]
  uint32_t nlanes;
  uint32_t lane_slots;
  uint32_t lane_bytes;              // of data in a slot, a multiple of 16
};

// One rank of a launch.
struct RankCall {
  const RankState *state;
  const void *input;
  void *output;
  uint64_t factor;  // of a scaled sum: the bits of an element, or where it lies in memory (Launch::scaling); else kLent...
};
// Peers may read this buffer of the call (direct.h). What is above kLentBits is the number of the first of Launch::words that
// tell how far from their addresses readers in other processes have the two, input first, reader by reader; 0: none of them has.
constexpr uint64_t kLentInput = 1, kLentOutput = 2;
constexpr uint32_t kLentBits = 2;
constexpr uint32_t kCallWords = 4;
constexpr uint64_t kNotThere = 1;  // such a word of a reader that has not mapped the buffer; others are whole pages

// A sum before which every rank's own input is multiplied by a factor of its own.
enum class Scaling : uint8_t { kNone = 0, kByValue = 1, kInMemory = 2 };

// The arguments of every kernel. Blocks are ranks x channels: block b runs channel b % nchannels of ranks[b / nchannels].
struct Launch {
  uint64_t count;      // NCCL's count, in elements
  uint64_t flip;       // of integers: see Reducing
  uint64_t timeout_ns;     // as in RankState, from where a wait would have to load it
  uint64_t chunk_inverse;  // of chunk_units
  uint32_t program;        // within the allocation; the next nine are the program's (put_program)
  uint32_t nchannels;
  uint32_t nshares;
  uint32_t chunk_units;    // of 16 bytes
  // Units from a rank's state to the program's first channel, its first share, the ends of its protocol.
  uint32_t channels_at;
  uint32_t shares_at;
  uint32_t ends_at;
  uint32_t channel_units;  // from one channel to the next
  uint32_t most_steps;     // as CachedTables has them
  uint32_t most_refs;
  uint32_t most_slots;     // of a FIFO
  uint32_t divisor;    // of a finished reduction; 0: none (avg divides by the number of ranks)
  uint32_t weights;    // of the classes of links, as step_program.h has them; a captured graph keeps them
  uint8_t collective;
  uint8_t operation;   // ncclRedOp_t 0..3; of integers never min
  Scaling scaling;     // of sums
  uint8_t cached;      // a block's steps and FIFO ends fit into its shared memory (CachedTables)
  uint32_t timed;      // the last bits of the call's number, where its classes are timed; else 0
  union {
    RankCall ranks[kMaxLaunchRanks];
    uint64_t words[kMaxLaunchRanks * kCallWords];  // behind the ranks of the launch: see kLentBits
  };
};
static_assert(sizeof(RankCall) == kCallWords * sizeof(uint64_t), "words lie behind ranks");
static_assert(sizeof(Launch) <= 4096, "kernel arguments end at 4 KiB on older drivers");

// One transfer of a rank. Its `end` is the peer's rank in the plan, or that plus the number of ranks where this rank sends.
struct alignas(16) Message {
  char *data;
  uint64_t bytes;      // not 0
  uint64_t signature;  // the same at both ends
  uint32_t end : 16;
  uint32_t sends : 1;
  uint32_t leaves : 1;    // the peer is on another server, to which one lane leads
  uint32_t next;          // of those with this end, counted from the rank's first message; 2^32 - 1: none
};

static_assert(sizeof(Message) == 32, "two accesses of 16 bytes");

// The messages of one rank in a launch begin at `first`; the first `streams` of them are the first ones with their ends.
struct ExchangeRank {
  const RankState *state;
  uint32_t first;
  uint32_t streams;
};

// The arguments of the kernel of transfers. Block b is lane b % nlanes of ranks[b / nlanes]. Where a group has more messages than
// arguments hold, launches before it have put them into a table: so all of them are in flight together, and a captured graph
// keeps them in its arguments.
struct Exchange {
  uint32_t nlanes;     // that the longest message needs
  uint32_t nranks;
  Message *table;      // null: the messages are here
  uint32_t load_at;
  uint32_t loads;      // not 0: this launch only puts so many messages into the table, from load_at on
  ExchangeRank ranks[kMostExchangeRanks];
  Message messages[kMostMessages];
};
static_assert(sizeof(Exchange) <= 4096, "kernel arguments end at 4 KiB on older drivers");

// What a block remembers of the messages with one end, in shared memory.
struct ExchangeStream {
  uint64_t done;       // chunks of the message that this lane has moved
  uint32_t message;
  uint32_t ready;
};
#if !defined(__CUDACC_RTC__)
// Bytes of shared memory of a block whose rank has so many streams.
constexpr uint32_t exchange_shared(uint32_t streams) { return streams * static_cast<uint32_t>(sizeof(ExchangeStream)) + 16; }
#endif

// A kernel is made for a protocol and an element type. Simple chooses the operation per chunk, LL and LL128 per line.
// Collectives that only move data run as the sum of a type of that size. A test may define a shorter list of types.
#if !defined(COLLC_TYPES)
#define COLLC_TYPES(X, Y) \
  X(Y, u8, uint8_t)       \
  X(Y, u32, uint32_t)     \
  X(Y, u64, uint64_t)     \
  X(Y, f16, Half)         \
  X(Y, f32, float)        \
  X(Y, f64, double)       \
  X(Y, bf16, Bfloat16)    \
  X(Y, e4m3, E4m3)        \
  X(Y, e5m2, E5m2)
#endif
#define COLLC_SIMPLE_KERNEL(X, name, type) X(simple_##name, type, Simple)
#define COLLC_LL_KERNEL(X, name, type) X(ll_##name, type, LL)
#define COLLC_LL128_KERNEL(X, name, type) X(ll128_##name, type, LL128)
#define COLLC_DIRECT_KERNEL(X, name, type) X(direct_##name, type, Direct)
#define COLLC_SWITCH_KERNEL(X, name, type) X(in_switch_##name, type, InSwitch)
#define COLLC_SIMPLE_KERNELS(X) COLLC_TYPES(COLLC_SIMPLE_KERNEL, X)
#define COLLC_LL_KERNELS(X) COLLC_TYPES(COLLC_LL_KERNEL, X)
#define COLLC_LL128_KERNELS(X) COLLC_TYPES(COLLC_LL128_KERNEL, X)
#define COLLC_DIRECT_KERNELS(X) COLLC_TYPES(COLLC_DIRECT_KERNEL, X)
#define COLLC_SWITCH_KERNELS(X) COLLC_TYPES(COLLC_SWITCH_KERNEL, X)

constexpr uint32_t kTypes = 12;       // ncclDataType_t 0..11
constexpr uint32_t kKernelTypes = 9;  // in the order above

// How a reduction is put to the kernels. Integers of one width share a kernel, for sums and products of signed ones have the
// same bits, and so has the largest once `flip` has turned bits of all values over and back: the sign's makes the order of
// signed integers that of unsigned ones, all bits make the smallest the largest. (NCCL's FuncMinMax does the same.) Of a sum,
// `flip` has the sign's bit for the division that an average ends with.
struct Reducing {
  uint32_t kernel_type;
  uint32_t operation;
  uint64_t flip;
};

#if !defined(__CUDACC_RTC__)
// Whether a switch does a reduction that is put so (multimem.h): no products, no elements of a byte; of floats of 32 and 64
// bits the sum alone. `kernel_type` is Reducing's, in the order of COLLC_TYPES.
constexpr bool switch_reduces(uint32_t kernel_type, uint32_t operation) {
  constexpr uint32_t kU32 = 1, kF16 = 3, kBf16 = 6, kSumOf = 0, kProdOf = 1;
  if (kernel_type < kU32 || kernel_type > kBf16 || operation == kProdOf) return false;
  return operation == kSumOf || kernel_type <= kF16 || kernel_type == kBf16;
}

// `type` is below kTypes, `operation` an ncclRedOp_t 0..3.
constexpr Reducing reducing(uint32_t type, uint32_t operation) {
  constexpr uint64_t kSigns[] = {0x8080808080808080u, 0, 0x8000000080000000u, 0, 0x8000000000000000u, 0};
  constexpr uint32_t kMax = 2, kMin = 3, kIntegers = 6;
  if (type >= kIntegers) return {type - kIntegers / 2, operation, 0};
  if (operation != kMin) return {type / 2, operation, kSigns[type]};
  return {type / 2, kMax, ~kSigns[type]};
}
#endif

}  // namespace collc::cuda
