// The connections of the tcp engine: a byte stream of heads and bodies. Only the proxy thread uses them; no function blocks.
#pragma once
#include <deque>

#include "base/descriptor.h"
#include "wire/allowance.h"
#include "wire/tls.h"
#include "wire/wire.h"

namespace collc {

class TcpConnection final : public WireConnection {
 public:
  // `fd`: connected, non-blocking, both ends authenticated. `tls`: the TLS channel over it; null: none.
  TcpConnection(Descriptor fd, std::unique_ptr<TlsChannel> tls, std::string interface, std::string name, double silence);

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  uint64_t busy_bytes() const override { return std::min(WireConnection::busy_bytes(), allowance_.limit()); }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override { is_finishing_ = true; }
  void add_to(std::vector<pollfd> *polled) const override;
  std::vector<std::string> interfaces() const override { return {interface_}; }
  const std::string &name() const override { return name_; }

  // Other connections use the same link, so from now on the kernel gets no more bytes than leave soon (allowance.h).
  void share_link();
  // Chooses another congestion control than BBR. The machine has connections to several others, and BBR's probing on one of
  // them would delay calls that wait for all.
  void avoid_bbr();
  // For rails: queues an urgent message before all messages that are not urgent and have not begun to leave. sent() means
  // nothing after that.
  void send_urgent(const WireHead &head, const void *body);
  // For rails: at most this many bytes wait in the kernel, where nothing can pass them.
  void limit_unsent(int bytes);
  int64_t heard_ms() const { return heard_ms_; }
  // Returns the bytes that have come and were not interpreted yet.
  size_t buffered_bytes() const { return end_ - begin_; }

 private:
  struct Part {
    WireHead head;
    const char *body;
    size_t done;  // bytes of head and body that were handed to the kernel or TLS
  };

  // Fills `pieces` with the queued bytes that the socket may get now, and returns the number of pieces; 0: nothing now.
  size_t gather(iovec *pieces);
  uint64_t may_hand_over();
  Status write(bool *moved, bool *ended);
  Status read(WireSink &sink, bool *moved, bool *ended);
  void wake_for(size_t bytes);
  // Interprets buffered input; sets `moved` if a message became complete.
  Status take_buffered(WireSink &sink, bool *moved);
  // The two functions have the results of sendmsg() and readv(), through TLS if there is a channel.
  ssize_t hand_over(iovec *pieces, size_t count);
  ssize_t fetch(iovec *pieces, size_t count);
  bool all_handed_over() const { return parts_.empty() && (tls_ == nullptr || tls_->is_flushed()); }
  Status broken(const char *what, int error, bool *ended) const;

  Descriptor fd_;
  std::unique_ptr<TlsChannel> tls_;
  std::string interface_, name_;
  double silence_;
  std::deque<Part> parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  Allowance allowance_;
  bool shares_link_ = false;
  bool is_full_ = false;  // the allowance is used up for the moment
  size_t nurgent_ = 0;  // number of parts in front that nothing may pass
  bool is_finishing_ = false, is_shut_ = false;
  int64_t heard_ms_;
  // Input that has not been interpreted: buffer_[begin_ .. end_).
  Bytes buffer_;
  size_t begin_ = 0, end_ = 0;
  WireHead head_ = {};       // of the message that is arriving
  char *body_ = nullptr;     // where the rest of its body goes
  uint32_t missing_bytes_ = 0;     // bytes of the body that have not come
  int low_water_ = 1;          // SO_RCVLOWAT: bytes that must have come before a poll returns
  bool in_body_ = false;
};

}  // namespace collc
