// The connections of the ucx engine: messages by UCX's matching of tags, their end by a TCP connection beside it.
//
// A message is one of UCX with the head, which carries a small body too, and a second one with a larger body. Both kinds have
// a tag for each sender, and UCX matches those of one tag in the order of sending. The TCP connection, over which the machines
// have proved themselves and exchanged UCX's addresses, carries signs of life and how many messages there were; when the
// process of the peer ends, its system ends that connection.
#pragma once
#include <deque>

#include "wire/control.h"
#include "wire/ucx_worker.h"
#include "wire/wire.h"

namespace collc {

class UcxConnection final : public WireConnection {
 public:
  // `control`: with `peer`, both ends authenticated.
  UcxConnection(std::shared_ptr<UcxWorker> worker, std::unique_ptr<WireConnection> control, uint32_t self, uint32_t peer,
                double silence);
  ~UcxConnection() override;
  UcxConnection(const UcxConnection &) = delete;
  UcxConnection &operator=(const UcxConnection &) = delete;

  // `address`: of the peer's worker. `announced`: how many messages it sends in all, UINT64_MAX if it has not told.
  Status open(const Bytes &address, uint64_t announced);

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override { finishing_ = true; }
  void add_to(std::vector<pollfd> *polled) const override { control_->add_to(polled); }
  const std::string &name() const override { return control_->name(); }

 private:
  struct Part {
    Bytes head;  // with a small body
    uint64_t bytes;
    void *requests[2];
  };
  // A place for a head.
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
  // The status of a request that may be none; one that is complete is freed.
  ucx::Status8 check(void **request);
  void complete_sends();
  void advance_flush();
  Status receive(WireSink &sink, bool *moved);
  Status see_heads(WireSink &sink);
  Status take_messages(WireSink &sink, bool *moved);
  void advance_control();
  void abandon(void **request);

  std::shared_ptr<UcxWorker> worker_;
  const ucx::Api &api_;
  std::unique_ptr<WireConnection> control_;
  uint64_t self_, peer_;
  double silence_;
  void *endpoint_ = nullptr;
  std::deque<Part> parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  std::vector<Place> places_;
  uint64_t seen_ = 0, taken_ = 0;  // messages
  void *flush_ = nullptr;
  uint64_t flushed_ = 0, flushing_ = 0;  // messages that the peer's device has; that the flush under way will tell of
  bool wants_flush_ = false, finishing_ = false, told_finish_ = false;
  uint64_t announced_ = UINT64_MAX;  // messages that the peer has sent in all, when it has told
  int64_t heard_ms_, controlled_ms_ = 0, beat_ms_ = 0;
  Status control_status_;
  bool control_ended_ = false;
  ucx::Status8 failure_ = ucx::kOk;  // of the endpoint
  int64_t failed_ms_ = 0;
};

}  // namespace collc
