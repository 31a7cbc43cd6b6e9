// What machines tell each other over the TCP connections on which they have proved themselves, where an engine lets another
// library carry the messages.
#pragma once
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "wire/wire.h"

namespace collc {

enum class ControlNote : uint32_t {
  kAddress = 1,  // the body: where the sender's library is reached
  kBeat,         // a sign of life
  kFinished,     // number: messages that the sender has sent in all; none of its requests is open any more
};
inline WireHead control_note(ControlNote kind, uint64_t number, uint32_t bytes = 0) {
  return {static_cast<uint32_t>(kind), 0, number, 0, bytes, 0};
}

// Takes one message, the peer's address.
class AddressSink final : public WireSink {
 public:
  Status place(const WireHead &head, char **body) override;
  // The peer may have begun with what follows.
  Status take(const WireHead &head) override;
  uint64_t announced() const { return announced_; }
  bool complete() const { return complete_; }
  const Bytes &address() const { return address_; }

 private:
  Bytes address_;
  bool complete_ = false;
  uint64_t announced_ = UINT64_MAX;
};

// Sends the address `own` to each machine, and waits for the address of each.
Status exchange_addresses(const WireMeeting &meeting, int64_t deadline_ms,
                          const std::vector<std::unique_ptr<WireConnection>> &controls, const Bytes &own,
                          std::vector<AddressSink> *peers);

// That a peer's process has ended shows as a machine that is out of reach; that a rank has left is known a moment later. No
// later than the deadline: what a machine waited for until then is what its ranks must report before others give them up.
Status after_verdict(const WireMeeting &meeting, int64_t deadline_ms, const Status &status);

}  // namespace collc
