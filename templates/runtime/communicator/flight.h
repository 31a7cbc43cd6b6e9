// The facts that a rank publishes about a communicator while it exists, for `collc status` (control/board.h), and the file of
// its last calls that it leaves when the communicator fails.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "control/segment.h"
#include "plan/call.h"

namespace collc {

class FlightRecord {
 public:
  // `id`: of the communicator, the same on all ranks. `tells_ends`: whether the backend notes when calls end.
  FlightRecord(std::shared_ptr<Segment> segment, const Placement &placement, uint32_t rank, uint64_t id, bool tells_ends);

  // Writes collc-ID-rankR.json into the folder COLLC_DUMP, if that is set; the first time only. What hinders it stands in the
  // log: the caller has its own error to tell.
  void leave(const Status &why) noexcept;
  // Writes the same file of a communicator that works; `why` says who wants it. Nothing where a failure has left it already.
  void show(const std::string &why) noexcept;
  // False if every call of this rank has ended: programs that end all communicators by ncclCommAbort have nothing to tell then.
  bool is_in_call() const;

 private:
  struct Clocks;
  std::string entry(const Clocks &clocks, uint32_t rank, const CallLog::Noted &call, uint64_t number, bool transfer) const;
  std::string entries(const Clocks &clocks, uint32_t rank, uint32_t most) const;
  std::string peer(const Clocks &clocks, uint32_t rank) const;
  std::string text(ncclResult_t result, const std::string &why) const;
  void write(ncclResult_t result, const std::string &why) noexcept;
  const char *state_of(uint32_t rank) const;

  std::shared_ptr<Segment> segment_;
  uint32_t rank_;
  std::atomic<bool> left_{false};
  std::mutex writing_;  // the file: by a rank that fails, and on request
};

}  // namespace collc
