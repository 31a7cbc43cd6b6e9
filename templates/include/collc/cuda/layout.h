// The data structures that host and device of the CUDA target share, and the list of kernels.
//
// Memory. Every rank owns one arena on its device. The slots of a FIFO and its tail (chunks written so far) are in the
// reader's arena, its head (chunks read so far) in the writer's. So data and counters are stored over the link, and every
// wait polls memory of its own device. If the two ranks are on different servers, each has a half of the FIFO in pinned host
// memory, and a proxy thread moves chunks and counters between the halves. Every protocol has its own slots and counters; LL
// and LL128 have no tails, because their data carry flags. Heads, tails and positions only grow over the life of a
// communicator. A captured graph may therefore be replayed any number of times: its kernel arguments contain only buffers and
// count of a call, but no positions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collc/tables.h"

namespace collc::cuda {

constexpr uint32_t kMaxThreads = 512;     // the kernels are compiled for blocks of up to this many threads
constexpr uint32_t kMinThreads = 64;      // one warp to wait, one to publish
constexpr uint32_t kMaxLaunchRanks = 125; // ranks of one cooperative launch; limited by 4 KiB of kernel arguments
constexpr uint32_t kMaxPeers = 256;       // FIFO ends of one step
constexpr uint32_t kFlagBytes = 128;      // one counter per line, so that pollers do not share it
constexpr uint32_t kWordsPerLine = 8;  // words of 8 bytes in a line that a proxy thread reads (transport/fifo.h)

constexpr uint32_t kShareBytes = 48;      // sizeof(ShareRange) of step_program.h
constexpr uint32_t kRowBytes = 16;        // sizeof(DeviceChannel)

constexpr uint32_t kMostMessages = 112;    // in the arguments of a launch of transfers; further messages are in a table
constexpr uint32_t kMostExchangeRanks = 28;  // ranks that share a GPU, in such a launch; both are limited by 4 KiB of arguments
constexpr uint32_t kTableMessages = 4096;  // capacity of each rank's table on its GPU
constexpr uint32_t kSlotHead = 128;  // bytes before the data in a slot for transfers; the first 8 are the message's signature

// The values of Program::protocol.
constexpr uint32_t kSimple = 0, kLL = 1, kLL128 = 2;
constexpr uint32_t kProtocols = 3;

// The tables of a rank are one block of its GPU's memory: the rank's state, the channels of its programs, the shares of the
// allocation, its FIFO ends (rank_tables.h of the runtime). The offset of each table is equal for all ranks. A launch
// contains the offsets, in units from the state, so no block has to load one table to find the next one.
constexpr uint32_t kTableUnit = 16;

// One end of a FIFO as its rank sees it, for one protocol. Steps refer to ends by number.
struct alignas(16) FifoEnd {
  char *slots;  // first slot, in the reader's arena
  uint64_t *wait_on;  // in this rank's arena: the tail for a reader, the head for a writer
  uint64_t *publish_to;  // in the peer's arena: the head for a reader, the tail for a writer
  uint64_t position;  // number of chunks that pass through these slots before the next call's first chunk here
  uint64_t seen;  // the value of *wait_on at the last look
  // For a writer whose reader is on another server: where it stores how many bytes of each slot the proxy thread has to send.
  // One word per slot, kWordsPerLine words apart; for LL below the chunk's number; for transfers packed, 4 bytes each. Else
  // null.
  uint64_t *chunk_bytes;
  uint32_t nslots;
  uint32_t slot_bytes;  // including flags
  // Tells if the reader's kernels can read the writer's buffers (direct.h): 0 if not; kSameAddress; or kSameAddress plus the
  // number of a reader in another process, which has them at another address.
  uint32_t by_address;
  uint32_t turns;  // number of FIFOs that use these slots in turn; the numbers of a call's chunks differ by it
};
constexpr uint32_t kSameAddress = 1;
// A tail is followed, in its line, by a word for each slot: the address of the chunk, or 0 if the chunk is in the slot.
constexpr uint32_t kMostByAddress = kFlagBytes / sizeof(uint64_t) - 1;  // slots of a FIFO with such words

// The tables that a block copies to its shared memory before its first step, if they fit. Otherwise each step would wait for
// tables in memory: three dependent loads, all of them misses after an acquire has emptied the first-level cache. The numbers
// are the maximum over the channels of the program; each channel also has this much room in the tables.
struct CachedTables {
  uint32_t nsteps;
  uint32_t nrefs;  // each refers to a different FIFO end
};
constexpr uint32_t kMostCached = 47 << 10;  // bytes of shared memory; more than 48 KiB would leave room for few blocks

#if !defined(__CUDACC_RTC__)  // NVRTC compiles no host code
// Returns the bytes of shared memory that a block needs for a program: addresses and flags of a step's slots, the row of its
// channel, the call's share ranges, and the other tables of its channel.
constexpr uint32_t shared_bytes(uint32_t nshares, const CachedTables &cached = {0, 0}) {
  return static_cast<uint32_t>(kMaxPeers * (sizeof(char *) + sizeof(uint64_t))) + kRowBytes + nshares * kShareBytes +
         cached.nsteps * static_cast<uint32_t>(sizeof(Step)) +
         cached.nrefs * static_cast<uint32_t>(sizeof(FifoEnd) + sizeof(FifoRef));
}
#endif

enum class ReportState : uint32_t { kNone = 0, kAborted = 1, kTimedOut = 2, kDiffers = 3 };
constexpr uint32_t kExchangeProgram = 0xffffffff;  // Report::program of a transfer; its `peer` is a Message::end

// The position of a channel when it gave up. One per channel, in pinned host memory; `state` is stored last, with release.
struct Report {
  uint32_t state;
  uint32_t peer;  // the FIFO end that did not move; the host knows its peer
  uint32_t program;
  uint32_t step;  // number in the channel
  uint64_t have;  // value of the counter or flag
  uint64_t need;  // value that the wait needed
};

// Where the time of a channel went in all calls so far, if the kernels were built to count (tally.h): ticks of the
// multiprocessor's clock, and the ns that they took together, which give the length of a tick.
enum class Activity : uint32_t { kWaiting = 0, kCopying = 1, kReducing = 2 };
constexpr uint32_t kActivities = 3;
struct ChannelTicks {
  uint64_t spent[kActivities];
  uint64_t ns;
};

// A step flag that only kernels know. In an in-place call, another step of the channel stores its result over this step's
// input as soon as this rank has all chunks, when others may still be reading the input.
constexpr uint8_t kOverwritten = 128;

// A share, and the inverse of its denominator (Inverted of step_program.h).
struct alignas(16) DeviceShare {
  Share share;
  uint64_t inverse;
};

// One channel on one rank. Its steps follow, then its references, each with room for as many as CachedTables says. The
// references of the steps count from the channel's first reference. If there is room behind the last reference, one to kNoEnd
// follows it.
struct alignas(16) DeviceChannel {
  uint32_t nsteps;
  uint32_t variant;  // of the generated variants (specialised.h); kNoVariant: none
};
constexpr uint32_t kNoVariant = 0xffffffff;
constexpr uint32_t kNoEnd = 0xffffffff;
static_assert(sizeof(DeviceChannel) == kRowBytes && kRowBytes % kTableUnit == 0 && sizeof(Step) % kTableUnit == 0 &&
                  2 * sizeof(FifoRef) == kTableUnit && sizeof(DeviceShare) % kTableUnit == 0 &&
                  sizeof(FifoEnd) % kTableUnit == 0,
              "tables begin at whole units");

// When a channel started and ended a timed call: ns of the GPU's clock, below the last bits of the call's number, which
// identify the call. So the words need no order among them. In pinned host memory.
struct ChannelTime {
  uint64_t begun;
  uint64_t ended;
};
constexpr uint32_t kTimeBits = 48;
constexpr uint32_t kTimesKept = 8;  // calls

// A rank as the device sees it. Written once, when the communicator is created; the rank's tables follow it.
struct alignas(16) RankState {
  Report *reports;  // in pinned host memory, one per channel
  uint32_t *abort_flag;  // in pinned host memory; a value other than 0 ends every wait
  uint64_t timeout_ns;  // 0: no limit
  uint32_t nranks;
  ChannelTicks *ticks;  // in device memory, one per channel; null unless the kernels count
  ChannelTime *times;  // of call n and channel c: times[n % kTimesKept * ntimes + c]
  uint32_t ntimes;
  FifoEnd *lane_ends;  // for transfers: p2p channel l of end e is lane_ends[e * nlanes + l]
  uint32_t nlanes;
  uint32_t lane_slots;
  uint32_t lane_bytes;  // bytes of data in a slot; a multiple of 16
};

// One rank of a launch.
struct RankCall {
  const RankState *state;
  const void *input;
  void *output;
  uint64_t factor;  // of a scaled sum: the bits of an element, or its address (Launch::scaling); else kLent... flags
};
// Peers may read this buffer of the call (direct.h). The bits above kLentBits are the index of the first Launch::words, which
// contain the distances at which readers in other processes have the two buffers: input and output of each reader. 0: no
// reader has them.
constexpr uint64_t kLentInput = 1, kLentOutput = 2;
constexpr uint32_t kLentBits = 2;
constexpr uint32_t kCallWords = 4;
constexpr uint64_t kNotThere = 1;  // the word of a reader that has not mapped the buffer; distances are whole pages

// A sum of products: every rank first multiplies its own input by its own factor.
enum class Scaling : uint8_t { kNone = 0, kByValue = 1, kInMemory = 2 };

// The arguments of every kernel. Block b runs channel b % nchannels of ranks[b / nchannels].
struct Launch {
  uint64_t count;  // NCCL's count, in elements
  uint64_t flip;  // for integers; see Reducing
  uint64_t timeout_ns;  // as RankState::timeout_ns, which a wait would have to load
  uint64_t chunk_inverse;  // of chunk_units
  uint32_t program;  // number in the allocation; the next nine members are the program's, too (put_program)
  uint32_t nchannels;
  uint32_t nshares;
  uint32_t chunk_units;  // in units of 16 bytes
  // Units from a rank's state to the program's first channel, to its first share, and to the ends of its protocol.
  uint32_t channels_at;
  uint32_t shares_at;
  uint32_t ends_at;
  uint32_t channel_units;  // units from one channel to the next
  uint32_t most_steps;  // as in CachedTables
  uint32_t most_refs;
  uint32_t most_slots;  // maximum slots of a FIFO
  uint32_t divisor;  // divisor of a complete reduction; 0: none (avg divides by the number of ranks)
  uint32_t weights;  // of path classes, as in step_program.h; a captured graph keeps them
  uint8_t collective;
  uint8_t operation;  // ncclRedOp_t 0..3; never min for integers
  Scaling scaling;  // for sums
  uint8_t cached;  // 1: a block's steps and FIFO ends fit into its shared memory (CachedTables)
  uint32_t timed;  // the last bits of the call's number if its classes are timed; else 0
  union {
    RankCall ranks[kMaxLaunchRanks];
    uint64_t words[kMaxLaunchRanks * kCallWords];  // behind the ranks of the launch; see kLentBits
  };
};
static_assert(sizeof(RankCall) == kCallWords * sizeof(uint64_t), "words lie behind ranks");
static_assert(sizeof(Launch) <= 4096, "kernel arguments end at 4 KiB on older drivers");

// One transfer of a rank. `end` is the peer's plan rank; plus the number of ranks if this rank sends.
struct alignas(16) Message {
  char *data;
  uint64_t bytes;  // not 0
  uint64_t signature;  // equal at both ends
  uint32_t end : 16;
  uint32_t sends : 1;
  uint32_t leaves : 1;  // 1: the peer is on another server; one p2p channel leads there
  uint32_t next;  // the next message with this end, counted from the rank's first message; 2^32 - 1: none
};

static_assert(sizeof(Message) == 32, "two accesses of 16 bytes");

// The messages of one rank in a launch start at `first`. The first `streams` of them are the first messages of their ends.
struct ExchangeRank {
  const RankState *state;
  uint32_t first;
  uint32_t streams;
};

// The arguments of the kernel of transfers. Block b runs p2p channel b % nlanes of ranks[b / nlanes]. If a group has more
// messages than the arguments can hold, earlier launches put them into a table. So all messages of the group are in flight
// together, and a captured graph keeps them in its arguments.
struct Exchange {
  uint32_t nlanes;  // as many as the longest message needs
  uint32_t nranks;
  Message *table;  // null: the messages are in `messages`
  uint32_t load_at;
  uint32_t loads;  // not 0: this launch only puts this many messages into the table, from load_at on
  ExchangeRank ranks[kMostExchangeRanks];
  Message messages[kMostMessages];
};
static_assert(sizeof(Exchange) <= 4096, "kernel arguments end at 4 KiB on older drivers");

// A block's state of the messages with one end, in shared memory.
struct ExchangeStream {
  uint64_t done;  // chunks of the message that this p2p channel has moved
  uint32_t message;
  uint32_t ready;
};
#if !defined(__CUDACC_RTC__)
// Returns the bytes of shared memory of a block whose rank has this many streams.
constexpr uint32_t exchange_shared(uint32_t streams) { return streams * static_cast<uint32_t>(sizeof(ExchangeStream)) + 16; }
#endif

// A kernel is compiled for a protocol and an element type. Simple selects the operation per chunk, LL and LL128 per line.
// Collectives that only move data run as sums of a type of the same size. A test may define a shorter list of types.
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

constexpr uint32_t kTypes = 12;  // ncclDataType_t 0..11
constexpr uint32_t kKernelTypes = 9;  // in the order above

// How a reduction is encoded for the kernels. Signed and unsigned integers of one width share a kernel, because sums and
// products have the same bits. So have maxima if `flip` inverts bits of all values before the comparison and back: inverting
// the sign bit gives signed integers the order of unsigned ones; inverting all bits turns the minimum into the maximum.
// (NCCL's FuncMinMax does the same.) For a sum, `flip` has the sign bit, for the division at the end of an average.
struct Reducing {
  uint32_t kernel_type;
  uint32_t operation;
  uint64_t flip;
};

#if !defined(__CUDACC_RTC__)
// Returns whether a switch can do a reduction with this encoding (multimem.h): no products, no elements of one byte; only
// sums for floats of 32 and 64 bits. `kernel_type` is Reducing's, in the order of COLLC_TYPES.
constexpr bool switch_reduces(uint32_t kernel_type, uint32_t operation) {
  constexpr uint32_t kU32 = 1, kF16 = 3, kBf16 = 6, kSumOf = 0, kProdOf = 1;
  if (kernel_type < kU32 || kernel_type > kBf16 || operation == kProdOf) return false;
  return operation == kSumOf || kernel_type <= kF16 || kernel_type == kBf16;
}

// Returns the encoding of a reduction. `type` is below kTypes; `operation` is an ncclRedOp_t 0..3.
constexpr Reducing reducing(uint32_t type, uint32_t operation) {
  constexpr uint64_t kSigns[] = {0x8080808080808080u, 0, 0x8000000080000000u, 0, 0x8000000000000000u, 0};
  constexpr uint32_t kMax = 2, kMin = 3, kIntegers = 6;
  if (type >= kIntegers) return {type - kIntegers / 2, operation, 0};
  if (operation != kMin) return {type / 2, operation, kSigns[type]};
  return {type / 2, kMax, ~kSigns[type]};
}
#endif

}  // namespace collc::cuda
