// A non-blocking stream between two processes: data that cannot be sent now is queued until there is room.
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
  // The address of the peer's machine, without its port; "" for a process of this machine.
  std::string from() const;
  void close();
  // The events to poll for.
  pollfd polled() const;

  // Reads available data until `received` has `most` bytes; false once the peer has disconnected.
  bool read(size_t most);
  Bytes received;

  // Sends in the order of the calls. Data for a disconnected peer is dropped.
  void send(const Frame &frame, std::shared_ptr<const Bytes> body = nullptr);
  void send_words(uint32_t result, const std::string &words);
  // Sends queued data.
  void flush();
  bool sending() const { return !waiting_.empty(); }
  // Ends sending but keeps the socket open: closing it with unread input could discard the last message before the peer has
  // read it.
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
