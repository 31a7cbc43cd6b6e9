// A non-blocking byte stream between the listener and a rank. Data that the socket does not take at once is queued. Only the
// listener's thread uses it.
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
  // Returns the address of the peer's machine, without its port; "" for a process of this machine.
  std::string from() const;
  void close();
  // Returns the descriptor and the events to poll for.
  pollfd polled() const;

  // Appends available data to `received` until it has `most` bytes. Returns false once the peer has disconnected.
  bool read(size_t most);
  Bytes received;

  // Queues a frame and its body behind earlier ones, and sends what the socket takes. Data for a disconnected peer is
  // dropped.
  void send(const Frame &frame, std::shared_ptr<const Bytes> body = nullptr);
  void send_words(uint32_t result, const std::string &words);
  // Sends queued data, as much as the socket takes.
  void flush();
  bool sending() const { return !waiting_.empty(); }
  // Shuts down the sending direction when all queued data has been sent. Keeps the socket open, because closing it with
  // unread input could discard the last message before the peer has read it.
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
