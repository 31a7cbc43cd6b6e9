// The connections of the tcp engine: a stream of heads and bodies.
#pragma once
#include <deque>

#include "base/descriptor.h"
#include "wire/allowance.h"
#include "wire/tls.h"
#include "wire/wire.h"

namespace collc {

class TcpConnection final : public WireConnection {
 public:
  // `fd`: connected, not blocking, both ends authenticated. `tls`: over it; null: none.
  TcpConnection(Descriptor fd, std::unique_ptr<TlsChannel> tls, std::string interface, std::string name, double silence);

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  uint64_t enough() const override { return std::min(WireConnection::enough(), allowance_.limit()); }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override { finishing_ = true; }
  void add_to(std::vector<pollfd> *polled) const override;
  std::vector<std::string> interfaces() const override { return {interface_}; }
  const std::string &name() const override { return name_; }

  // Other connections use the same link: from now on the kernel has no more than leaves soon.
  void share_link();
  // Its machine has others too: BBR's turns, where it is in use, would hold up calls that wait for all.
  void leave_bbr();
  // As a rail: what is urgent passes all that is not and has not begun to go; sent() then means nothing.
  void send_first(const WireHead &head, const void *body);
  // As a rail: at most so many bytes wait in the kernel, where nothing passes them.
  void hold_back(int bytes);
  int64_t heard_ms() const { return heard_ms_; }
  // Bytes that have come and were not taken yet.
  size_t at_hand() const { return end_ - begin_; }

 private:
  struct Part {
    WireHead head;
    const char *body;
    size_t done;  // bytes of both that have been handed over
  };

  // What the socket may have of the parts that wait; 0: nothing now.
  size_t gather(iovec *pieces);
  uint64_t may_hand_over();
  Status write(bool *moved, bool *ended);
  Status read(WireSink &sink, bool *moved, bool *ended);
  void wake_for(size_t bytes);
  // Goes on with what is buffered; `moved` if a message became complete.
  Status take_buffered(WireSink &sink, bool *moved);
  // As sendmsg() and readv(), for what the socket carries.
  ssize_t hand_over(iovec *pieces, size_t count);
  ssize_t fetch(iovec *pieces, size_t count);
  bool all_handed_over() const { return parts_.empty() && (tls_ == nullptr || tls_->flushed()); }
  Status broken(const char *what, int error, bool *ended) const;

  Descriptor fd_;
  std::unique_ptr<TlsChannel> tls_;
  std::string interface_, name_;
  double silence_;
  std::deque<Part> parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  Allowance allowance_;
  bool sharing_ = false;
  bool full_ = false;  // nothing more may be handed over for the moment
  size_t urgent_ = 0;  // parts in front that nothing passes
  bool finishing_ = false, shut_ = false;
  int64_t heard_ms_;
  // Input that has not been interpreted yet: buffer_[begin_ .. end_).
  Bytes buffer_;
  size_t begin_ = 0, end_ = 0;
  WireHead head_ = {};       // of the message that is coming
  char *body_ = nullptr;     // where its body goes
  uint32_t missing_ = 0;     // bytes of it
  int awaited_ = 1;          // that must have come before a poll tells
  bool in_body_ = false;
};

}  // namespace collc
