// A stream between two processes that never makes its owner wait: what cannot be sent now is sent when there is room.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/descriptor.h"
#include "bootstrap/unique_id.h"

namespace collc {

class Connection {
 public:
  Connection() = default;
  explicit Connection(Descriptor fd) : fd_(std::move(fd)) {}

  bool open() const { return static_cast<bool>(fd_); }
  void close();
  // What to wait for.
  pollfd polled() const;

  // Reads what is there until `received` has `most` bytes; false once the peer has gone.
  bool read(size_t most);
  Bytes received;

  // Sends in the order of the calls; a peer that has gone takes nothing.
  void send(const Frame &frame, std::shared_ptr<const Bytes> body = nullptr);
  void send_words(uint32_t result, const std::string &words);
  // Sends on what waits.
  void flush();
  bool sending() const { return !waiting_.empty(); }
  // After the last word, which stays readable: closing with words of the peer unread could take it away.
  void end_sending();

 private:
  struct Part {
    std::shared_ptr<const Bytes> bytes;
    size_t sent;
  };

  Descriptor fd_;
  std::deque<Part> waiting_;
  bool ending_ = false;
};

}  // namespace collc
