// The knowledge that the ranks of a communicator have of each other after its creation: which ranks live, whether the
// communicator was aborted, the calls that each has made, and small messages for splits.
//
// An interface, because ranks may be joined by shared memory (segment.h) or, one day, by connections between servers. It is
// not used per chunk: executors on shared memory use Segment directly, which is final.
//
// Any thread may call it; no function waits for another rank, except that abort_status() may wait up to 1 s for the text of
// the error.
#pragma once
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace collc {

// Maximum bytes of a message.
constexpr size_t kMostMail = 192;
// Minimum number of messages of a rank that are kept. Ranks that exchange messages go on only when all have read them
// (Communicator::correspond_bytes), so no message that is still needed is overwritten. The other kept messages are failures;
// nobody waits until these have been read.
constexpr uint64_t kKeptMail = 15;

class Control {
 public:
  virtual ~Control() = default;

  virtual uint32_t nranks() const = 0;

  // Declares that `rank` runs in this process.
  virtual Status attach(uint32_t rank) = 0;
  // Declares that the rank has left. Everything that it wrote stays readable.
  virtual void leave(uint32_t rank) = 0;
  virtual bool has_left(uint32_t rank) const = 0;
  // Returns false if the rank's process has died without leaving.
  virtual bool alive(uint32_t rank) const = 0;

  // Ends the communicator for all ranks; the error of the first caller counts. If its code is ncclInvalidUsage, all ranks get
  // it. Any other code is only the result of `rank`; the others get ncclRemoteError.
  virtual void abort(const Status &status, uint32_t rank) = 0;
  virtual bool aborted() const = 0;
  // Returns the error of the abort as rank `rank` sees it.
  virtual Status abort_status(uint32_t rank) const = 0;
  // Returns `failure`. If calls differ in another communicator of this process, its text also says which: a rank that is missed here
  // may have left because of them.
  virtual Status with_differing_calls(const Status &failure) const = 0;

  // Returns the number of the last call that a rank has noted.
  virtual uint64_t newest_call(uint32_t rank) const = 0;
  // Declares that the rank makes no more calls.
  virtual void finalize(uint32_t rank) = 0;
  virtual bool is_finalized(uint32_t rank) const = 0;
  // Fails with ncclInvalidUsage, naming both calls, if the calls of two ranks differ, or if `peer` is finalized and has made fewer.
  virtual Status compare(uint32_t rank, uint32_t peer) const = 0;

  // Stores a message of `rank` for all others and returns its number, counted from 1. The last kKeptMail messages are kept.
  virtual uint64_t post(uint32_t rank, const Bytes &message) = 0;
  // Returns the number of a rank's last message; 0 if it has posted none.
  virtual uint64_t newest_mail(uint32_t rank) const = 0;
  // Reads message `number` of a rank, padded with zeros. `message` is empty if it has not come yet or is no longer kept.
  // Fails with ncclRemoteError if it never will come, because the rank has died.
  virtual Status take(uint32_t rank, uint64_t number, Bytes *message) const = 0;
};

}  // namespace collc
