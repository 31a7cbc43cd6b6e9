// The connections of the ucx engine: messages by UCX's tag matching, and a TCP connection that shows when the peer ends.
//
// A message is one UCX message with the head, which also carries a small body, and a second one with a larger body. Heads and
// bodies have one tag per sender each, and UCX matches messages of one tag in the order of sending. The machines have
// authenticated themselves and exchanged UCX's addresses over the TCP connection. It then carries signs of life and the
// number of messages that were sent; when the process of the peer ends, the peer's system closes it.
//
// Only the proxy thread uses the object, and no function blocks, except that the destructor may take up to 2 s.
#pragma once
#include <deque>

#include "wire/control.h"
#include "wire/ucx_worker.h"
#include "wire/wire.h"

namespace collc {

class UcxConnection final : public WireConnection {
 public:
  // `control`: the authenticated TCP connection to `peer`.
  UcxConnection(std::shared_ptr<UcxWorker> worker, std::unique_ptr<WireConnection> control, uint32_t self, uint32_t peer,
                double silence);
  ~UcxConnection() override;
  UcxConnection(const UcxConnection &) = delete;
  UcxConnection &operator=(const UcxConnection &) = delete;

  // `address`: of the peer's worker. `announced`: the number of messages that the peer sends in all; UINT64_MAX if it is not
  // known yet.
  Status open(const Bytes &address, uint64_t announced);

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + queued_parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override { is_finishing_ = true; }
  void add_to(std::vector<pollfd> *polled) const override { control_->add_to(polled); }
  const std::string &name() const override { return control_->name(); }

 private:
  struct Part {
    Bytes head;  // with a small body
    uint64_t bytes;
    void *requests[2];
  };
  // A buffer for a head, and the state of its message.
  struct Place {
    Bytes buffer;
    void *request = nullptr;
    WireHead head = {};
    char *body = nullptr;
    void *body_request = nullptr;
  };
  class Notes;

  void post(const void *data, size_t size, uint64_t tag, void **request);
  void post_place(Place &place);
  void note_failure(void **request);
  void fail_with(ucx::Status8 status);
  // Returns the status of a request; success if there is none. Frees a request that is complete.
  ucx::Status8 check(void **request);
  void complete_sends();
  void advance_flush();
  Status receive(WireSink &sink, bool *moved);
  Status read_heads(WireSink &sink);
  Status take_messages(WireSink &sink, bool *moved);
  void advance_control();
  void cancel(void **request);

  std::shared_ptr<UcxWorker> worker_;
  const ucx::Api &api_;
  std::unique_ptr<WireConnection> control_;
  uint64_t self_, peer_;
  double silence_;
  void *endpoint_ = nullptr;
  std::deque<Part> queued_parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  std::vector<Place> places_;
  uint64_t nheads_ = 0, nmessages_ = 0;  // number of messages whose heads were read, and that were passed on
  void *flush_request_ = nullptr;
  uint64_t nflushed_ = 0, nflushing_ = 0;  // messages that the peer's device has; messages that the running flush covers
  bool wants_flush_ = false, is_finishing_ = false, finish_sent_ = false;
  uint64_t peer_total_ = UINT64_MAX;  // messages that the peer has sent in all; UINT64_MAX until it has reported the number
  int64_t last_input_ms_, last_control_ms_ = 0, last_beat_ms_ = 0;
  Status control_status_;
  bool control_ended_ = false;
  ucx::Status8 failure_ = ucx::kOk;  // of the endpoint
  int64_t failed_ms_ = 0;
};

}  // namespace collc
