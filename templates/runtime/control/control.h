// What the ranks of a communicator know of each other once it is made: who lives, whether it was aborted, what each has
// called, and small messages for its splits.
//
// An interface, because ranks may be joined by shared memory (segment.h) or, one day, by connections between servers.
// Nothing here is asked for every chunk: executors on shared memory use Segment itself, which is final.
#pragma once
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace collc {

// Bytes of a message, at most.
constexpr size_t kMostMail = 192;
// Messages of a rank that are kept, at least. Ranks that correspond go on when all have read (Communicator::correspond_bytes), so
// none that somebody still needs is overwritten; what is kept beside them are failures, of which nobody waits to be told.
constexpr uint64_t kKeptMail = 15;

class Control {
 public:
  virtual ~Control() = default;

  virtual uint32_t nranks() const = 0;

  // Declares `rank` alive in this process.
  virtual Status attach(uint32_t rank) = 0;
  // The rank has left; what it wrote stays readable.
  virtual void leave(uint32_t rank) = 0;
  virtual bool has_left(uint32_t rank) const = 0;
  // False if the rank's process has died without leaving.
  virtual bool alive(uint32_t rank) const = 0;

  // Ends the communicator for all ranks; the first caller's message stays. With ncclInvalidUsage, all ranks get that
  // result; any other code is the result of `rank` alone, and the others get ncclRemoteError.
  virtual void abort(const Status &status, uint32_t rank) = 0;
  virtual bool aborted() const = 0;
  // The abort's error as rank `rank` sees it.
  virtual Status abort_status(uint32_t rank) const = 0;

  // The number of the latest call that a rank has noted.
  virtual uint64_t newest_call(uint32_t rank) const = 0;
  // The rank makes no more calls.
  virtual void finalize(uint32_t rank) = 0;
  virtual bool is_finalized(uint32_t rank) const = 0;
  // ncclInvalidUsage with both calls if those of two ranks differ.
  virtual Status compare(uint32_t rank, uint32_t peer) const = 0;

  // Leaves a message of `rank` for all others; returns its number. The last kKeptMail are kept.
  virtual uint64_t post(uint32_t rank, const Bytes &message) = 0;
  // The number of a rank's last message; 0: it has posted none.
  virtual uint64_t newest_mail(uint32_t rank) const = 0;
  // Message `number` of a rank, filled up with zeros; empty if it has not come, or is kept no more. ncclRemoteError if it
  // never will come.
  virtual Status take(uint32_t rank, uint64_t number, Bytes *message) const = 0;
};

}  // namespace collc
