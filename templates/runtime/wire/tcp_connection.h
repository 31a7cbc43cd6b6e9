// The connections of the tcp engine: a stream of heads and bodies.
#pragma once
#include <deque>

#include "base/descriptor.h"
#include "wire/wire.h"

namespace collc {

class TcpConnection final : public WireConnection {
 public:
  // `fd`: connected, not blocking, both ends authenticated.
  TcpConnection(Descriptor fd, std::string name, double silence);

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override { finishing_ = true; }
  int descriptor(bool *output) const override;
  const std::string &name() const override { return name_; }

 private:
  struct Part {
    WireHead head;
    const char *body;
    size_t done;  // bytes of both that have been handed over
  };

  Status write(bool *moved, bool *ended);
  Status read(WireSink &sink, bool *moved, bool *ended);
  // Goes on with what is buffered; `moved` if a message became complete.
  Status take_buffered(WireSink &sink, bool *moved);
  Status broken(const char *what, int error, bool *ended) const;

  Descriptor fd_;
  std::string name_;
  double silence_;
  std::deque<Part> parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  bool finishing_ = false, shut_ = false;
  int64_t heard_ms_;
  // Input that has not been interpreted yet: buffer_[begin_ .. end_).
  Bytes buffer_;
  size_t begin_ = 0, end_ = 0;
  WireHead head_ = {};       // of the message that is coming
  char *body_ = nullptr;     // where its body goes
  uint32_t missing_ = 0;     // bytes of it
  bool in_body_ = false;
};

}  // namespace collc
