// Control notes between two machines over their authenticated TCP connection, for engines whose messages another library
// carries (UCX).
#pragma once
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "wire/wire.h"

namespace collc {

enum class ControlNote : uint32_t {
  kAddress = 1,  // the body is the address of the sender's library
  kBeat,         // a sign of life
  kFinished,     // `number`: all messages that the sender has sent; none of its requests is open any more
};
inline WireHead control_note(ControlNote kind, uint64_t number, uint32_t bytes = 0) {
  return {static_cast<uint32_t>(kind), 0, number, 0, bytes, 0};
}

// Receives one message, the peer's address.
class AddressSink final : public WireSink {
 public:
  Status place(const WireHead &head, char **body) override;
  // After the address, the peer may already have sent that it has finished.
  Status take(const WireHead &head) override;
  uint64_t announced() const { return announced_; }
  bool complete() const { return complete_; }
  const Bytes &address() const { return address_; }

 private:
  Bytes address_;
  bool complete_ = false;
  uint64_t announced_ = UINT64_MAX;
};

// Sends the address `own` to each machine and blocks until the address of each has come, the deadline has passed, or
// meeting.stop() returns true.
Status exchange_addresses(const WireMeeting &meeting, int64_t deadline_ms,
                          const std::vector<std::unique_ptr<WireConnection>> &controls, const Bytes &own,
                          std::vector<AddressSink> *peers);

// Delays the error of a failed meeting by up to 2 s, but not beyond the deadline, and returns it. If a peer's process has
// ended, this machine first sees a lost connection, and learns only a moment later that a rank has left; meeting.stop() then
// returns true and ends the delay. An error at the deadline must be reported before other ranks give up this one.
Status after_verdict(const WireMeeting &meeting, int64_t deadline_ms, const Status &status);

}  // namespace collc
