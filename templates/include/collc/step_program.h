// The step program: the loop over one channel of one rank, with the same source for every target.
//
// `Verbs` is the target. It waits, moves data and publishes. The order of the calls in run_channel() is the protocol:
//   wait until every chunk to receive has arrived and every slot to write is free   (acquire)
//   reduce or copy the chunk
//   publish: received slots are free, written slots hold a chunk                     (release)
// On the host, where one thread runs several ranks, a wait that would block returns instead; run_channel() then returns
// kBlocked and is called again with the same cursor. A step has no effect before all its waits have passed. On CUDA, waits
// spin and fail only if the call is aborted.
#pragma once
#include <cstdint>

#include "collc/tables.h"

#ifndef COLLC_FUNCTION
#define COLLC_FUNCTION inline
#endif

namespace collc {

enum class Progress : uint32_t { kDone = 0, kBlocked = 1, kAborted = 2 };

// The place of a share in the caller's buffers, for one call. All numbers are elements, not bytes.
struct ShareRange {
  uint64_t begin;       // first element of the share within its block
  uint64_t end;         // one past the last
  uint64_t in_base;     // element offset of the block in the input buffer
  uint64_t out_base;    // element offset of the block in the output buffer
  uint64_t chunk;       // elements per chunk
  uint64_t nchunks;
};

// A call carries the weights of its classes by value, one byte per class, nvlink in the lowest. 0: one class carries
// everything.
constexpr uint32_t kClasses = 3;
constexpr uint32_t kUnitBytes = 16;  // no element is larger

// A number and its inverse. A GPU divides 64 bits in about a hundred instructions; if many numbers are divided by the same
// one, the inverse needs only a few.
struct Inverted {
  uint32_t number;   // not 0
  uint64_t inverse;  // (2^64 - 1) / number
};

// Returns the inverse of a number below 2^16. Long division by digits of 16 bits, so all divisions are of 32 bits.
COLLC_FUNCTION Inverted inverted(uint32_t number) {
  uint64_t inverse = 0;
  uint32_t rest = 0;
  for (uint32_t digit = 0; digit < 4; ++digit) {
    rest = rest << 16 | 0xffff;
    inverse = inverse << 16 | rest / number;
    rest %= number;
  }
  return {number, inverse};
}

COLLC_FUNCTION uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

COLLC_FUNCTION uint64_t quotient_of(uint64_t n, uint32_t by) { return n / by; }
// The product is the quotient or one less, because the inverse is less than 2^64 / number by at most 1, and n is below 2^64.
COLLC_FUNCTION uint64_t quotient_of(uint64_t n, const Inverted &by) {
  const uint64_t product = high_product(n, by.inverse);
  return n - product * by.number >= by.number ? product + 1 : product;
}
COLLC_FUNCTION uint32_t number_of(uint32_t by) { return by; }
COLLC_FUNCTION uint32_t number_of(const Inverted &by) { return by.number; }
// Returns `number` as a divisor of the type of the first argument.
COLLC_FUNCTION uint32_t divisor_like(uint32_t, uint32_t number) { return number; }
COLLC_FUNCTION Inverted divisor_like(const Inverted &, uint32_t number) { return inverted(number); }

// Returns n * num / by without overflow; num and `by` are below 2^31.
template <class Divisor>
COLLC_FUNCTION uint64_t part_of(uint64_t n, uint64_t num, const Divisor &by) {
  const uint64_t whole = quotient_of(n, by);
  return whole * num + quotient_of((n - whole * number_of(by)) * num, by);
}

// The elements of a block that a class carries.
struct PartRange {
  uint64_t begin;
  uint64_t end;
};

// Returns the part of class `part`. Boundaries are multiples of `unit` elements if the count allows. The type of `like`
// selects the way of dividing.
template <class Divisor>
COLLC_FUNCTION PartRange cut_part(uint32_t weights, uint32_t part, uint64_t count, uint64_t unit, const Divisor &like) {
  uint32_t below = 0, own = 0, total = 0;
  for (uint32_t c = 0; c < kClasses; ++c, weights >>= 8) {
    const uint32_t weight = weights & 0xff;
    if (c < part) below += weight;
    if (c == part) own = weight;
    total += weight;
  }
  if (own == 0) return {0, 0};
  const uint32_t end = below + own;
  const Divisor by = divisor_like(like, total);
  const uint64_t from = part_of(count, below, by), to = part_of(count, end, by);
  return {from / unit * unit, end == total ? count : to / unit * unit};
}

// Computes the range and the chunks of one share of `count` elements; all ranks compute the same. Boundaries are multiples of
// 16 bytes if the count allows. The chunks of a share are equal up to one unit of 16 bytes, so that no small last chunk costs
// a whole step; only for more than 2^32 elements the last chunk may be small.
//   den: share.den; most: bytes of a chunk, in units of 16
template <class Divisor>
COLLC_FUNCTION ShareRange cut_share(const Share &share, const Divisor &den, const Divisor &most, uint64_t count,
                                    uint32_t element_bytes, uint32_t weights) {
  const uint32_t unit = kUnitBytes / element_bytes;
  PartRange part{0, count};
  if (weights != 0) {
    part = cut_part(weights, share.part, count, unit, den);
    count = part.end - part.begin;
  }
  ShareRange range;
  range.begin = part.begin + part_of(count, share.lo_num, den) / unit * unit;
  range.end = share.hi_num == share.den ? part.end : part.begin + part_of(count, share.hi_num, den) / unit * unit;
  range.in_base = 0;
  range.out_base = 0;
  const uint64_t elements = range.end - range.begin;
  range.nchunks = quotient_of((elements + unit - 1) / unit + number_of(most) - 1, most);
  range.chunk = static_cast<uint64_t>(number_of(most)) * unit;
  if (range.nchunks != 0 && elements >> 32 == 0) {
    const uint32_t even = (static_cast<uint32_t>(elements) - 1) / static_cast<uint32_t>(range.nchunks) + 1;
    range.chunk = (static_cast<uint64_t>(even) + unit - 1) / unit * unit;
  }
  return range;
}

COLLC_FUNCTION ShareRange cut_share(const Share &share, uint64_t count, uint32_t element_bytes, uint32_t chunk_bytes,
                                    uint32_t weights = 0) {
  return cut_share(share, share.den, chunk_bytes / kUnitBytes, count, element_bytes, weights);
}

// Sets where a block lies in the caller's buffers, in elements. These are NCCL's conventions, as in block_layout of the
// compiler's collectives. `block` counts NCCL's ranks. The result is meaningful only for a rank that reads or writes the
// block there.
COLLC_FUNCTION void place_block(Collective collective, uint32_t nranks, uint32_t block, uint64_t count, ShareRange &range) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      range.out_base = block * count;
      break;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      range.in_base = block * count;
      break;
    case Collective::kAllToAll:  // block source * nranks + destination
      range.in_base = block % nranks * count;
      range.out_base = block / nranks * count;
      break;
    default:
      break;
  }
}

// One step in one iteration, as `run_channel` passes it to the verbs.
struct Chunk {
  uint64_t index;     // chunk number within the share
  uint64_t begin;     // first element within the block
  uint64_t elements;
};

COLLC_FUNCTION Chunk chunk_of(const ShareRange &share, uint64_t index) {
  const uint64_t begin = share.begin + index * share.chunk, left = share.end - begin;
  return {index, begin, left < share.chunk ? left : share.chunk};
}

// The position of a channel. On targets that can block, the caller keeps it between calls.
struct Cursor {
  uint64_t iteration;
  uint32_t step;
};

// Runs one channel of one rank to its end, or until a wait fails.
//   steps, refs: the channel's rows; shares: this call's ranges, by program; iterations: max(nchunks + lag)
template <class Verbs>
COLLC_FUNCTION Progress run_channel(Verbs &verbs, const Step *steps, uint32_t nsteps, const FifoRef *refs,
                                    const ShareRange *shares, uint64_t iterations, Cursor &at) {
  for (; at.iteration < iterations; ++at.iteration, at.step = 0) {
    for (; at.step < nsteps; ++at.step) {
      const Step &step = steps[at.step];
      const ShareRange &share = shares[step.share];
      if (at.iteration < step.lag) continue;
      const uint64_t index = at.iteration - step.lag;
      if (index >= share.nchunks) continue;
      const Chunk chunk = chunk_of(share, index);

      const FifoRef *recv = refs + step.first_ref;
      const FifoRef *send = recv + step.nrecv;
      const Progress ready = verbs.wait(step, recv, send, chunk);
      if (ready != Progress::kDone) return ready;
      verbs.move(step, recv, send, share, chunk);
      verbs.publish(step, recv, send, chunk);
    }
  }
  return Progress::kDone;
}

}  // namespace collc
