#include "wire/ucx_connection.h"

#include <cstring>

#include "base/clock.h"

namespace collc {
namespace {

constexpr size_t kPlaces = 32;  // number of heads that UCX has a buffer for
constexpr int64_t kControlMs = 1, kNoteMs = 1000;
// When the peer's process ends, UCX may notice it before the TCP connection does. Only the TCP connection can tell this from
// a broken network, so UCX's error waits for it.
constexpr int64_t kEndMs = 1000;
constexpr int64_t kCloseMs = 2000;

constexpr uint64_t kAllBits = UINT64_MAX;
constexpr uint64_t head_tag(uint64_t sender) { return sender << 1; }
constexpr uint64_t body_tag(uint64_t sender) { return sender << 1 | 1; }

}  // namespace

// Receives the messages on the TCP connection, once UCX carries the messages.
class UcxConnection::Notes final : public WireSink {
 public:
  explicit Notes(UcxConnection &connection) : connection_(connection) {}
  Status place(const WireHead &head, char **) override {
    return fail(ncclInternalError, "it sent a note of %u bytes", head.bytes);
  }
  Status take(const WireHead &head) override {
    if (head.kind == static_cast<uint32_t>(ControlNote::kFinished)) connection_.peer_total_ = head.number;
    return {};
  }

 private:
  UcxConnection &connection_;
};

UcxConnection::UcxConnection(std::shared_ptr<UcxWorker> worker, std::unique_ptr<WireConnection> control, uint32_t self,
                             uint32_t peer, double silence)
    : worker_(std::move(worker)),
      api_(worker_->api()),
      control_(std::move(control)),
      self_(self),
      peer_(peer),
      silence_(silence),
      places_(kPlaces),
      last_input_ms_(now_ms()) {}

Status UcxConnection::open(const Bytes &address, uint64_t announced) {
  peer_total_ = announced;
  const UcxLock lock;
  ucx::EndpointParams params;
  params.mask = ucx::kEndpointAddress | ucx::kEndpointErrorMode | ucx::kEndpointOnError;
  params.address = address.data();
  params.error_mode = ucx::kPeerErrors;
  params.on_error = [](void *connection, void *, ucx::Status8 status) {
    static_cast<UcxConnection *>(connection)->failure_ = status;
  };
  params.error_argument = this;
  const ucx::Status8 status = api_.ucp_ep_create(worker_->get(), &params, &endpoint_);
  if (status != ucx::kOk) {
    endpoint_ = nullptr;
    return fail(ncclSystemError, "engine ucx: %s does not reach %s: %s", worker_->transports().c_str(), name().c_str(),
                api_.ucs_status_string(status));
  }
  for (Place &place : places_) post_place(place);
  return {};
}

UcxConnection::~UcxConnection() {
  const UcxLock lock;
  if (UcxLock::is_closed()) return;
  // After this, UCX writes nothing into the communicator's memory any more.
  ucx::RequestParam by_force;
  by_force.mask = ucx::kRequestFlags;
  by_force.flags = ucx::kCloseByForce;
  if (flush_request_ != nullptr) api_.ucp_request_free(flush_request_);
  void *closing = endpoint_ != nullptr ? api_.ucp_ep_close_nbx(endpoint_, &by_force) : nullptr;
  for (Place &place : places_) {
    cancel(&place.request);
    cancel(&place.body_request);
  }
  for (Part &part : queued_parts_)
    for (void *&request : part.requests) cancel(&request);
  const auto is_done = [&] {
    bool all = check(&closing) != ucx::kInProgress;
    for (Place &place : places_) {
      all &= check(&place.request) != ucx::kInProgress;
      all &= check(&place.body_request) != ucx::kInProgress;
    }
    for (Part &part : queued_parts_)
      for (void *&request : part.requests) all &= check(&request) != ucx::kInProgress;
    return all;
  };
  for (const int64_t start = now_ms(); !is_done() && now_ms() - start < kCloseMs;) api_.ucp_worker_progress(worker_->get());
}

void UcxConnection::cancel(void **request) {
  if (*request != nullptr && api_.ucp_request_check_status(*request) == ucx::kInProgress)
    api_.ucp_request_cancel(worker_->get(), *request);
}

ucx::Status8 UcxConnection::check(void **request) {
  if (*request == nullptr) return ucx::kOk;
  ucx::Status8 status = ucx::status_of(*request);
  if (ucx::is_request(*request)) {
    status = api_.ucp_request_check_status(*request);
    if (status == ucx::kInProgress) return status;
    api_.ucp_request_free(*request);
  }
  *request = nullptr;
  return status;
}

void UcxConnection::post(const void *data, size_t size, uint64_t tag, void **request) {
  const ucx::RequestParam defaults;
  *request = failure_ == ucx::kOk ? api_.ucp_tag_send_nbx(endpoint_, data, size, tag, &defaults) : nullptr;
}

void UcxConnection::send(const WireHead &head, const void *body) {
  const UcxLock lock;
  queued_parts_.push_back({Bytes(sizeof head), sizeof head + head.bytes, {nullptr, nullptr}});
  Part &part = queued_parts_.back();
  queued_bytes_ += part.bytes;
  std::memcpy(part.head.data(), &head, sizeof head);
  const bool is_small = head.bytes <= kSmallWireBody;
  if (is_small) {
    const auto *const words = static_cast<const unsigned char *>(body);
    part.head.insert(part.head.end(), words, words + head.bytes);
  }
  if (UcxLock::is_closed()) return;
  post(part.head.data(), part.head.size(), head_tag(self_), &part.requests[0]);
  if (!is_small) post(body, head.bytes, body_tag(self_), &part.requests[1]);
}

// Counts messages as sent, in their order.
void UcxConnection::complete_sends() {
  while (!queued_parts_.empty()) {
    Part &part = queued_parts_.front();
    for (void *&request : part.requests) {
      const ucx::Status8 status = check(&request);
      if (status == ucx::kInProgress) return;
      if (status != ucx::kOk) fail_with(status);
    }
    // Nothing is sent over an endpoint that has failed; the other messages stay queued.
    if (failure_ != ucx::kOk) return;
    queued_bytes_ -= part.bytes;
    queued_parts_.pop_front();
    ++sent_;
  }
}

// UCX reports messages that have left; a flush reports those that have arrived.
void UcxConnection::advance_flush() {
  if (flush_request_ == nullptr && wants_flush_ && queued_parts_.empty() && nflushed_ != sent_ && failure_ == ucx::kOk) {
    nflushing_ = sent_;
    const ucx::RequestParam defaults;
    flush_request_ = api_.ucp_ep_flush_nbx(endpoint_, &defaults);
    if (flush_request_ == nullptr) nflushed_ = nflushing_;
  }
  if (flush_request_ == nullptr) return;
  const ucx::Status8 status = check(&flush_request_);
  if (status == ucx::kOk) nflushed_ = nflushing_;
  if (status < 0) fail_with(status);
}

bool UcxConnection::drained() {
  const UcxLock lock;
  if (UcxLock::is_closed() || failure_ != ucx::kOk) return false;
  wants_flush_ = true;
  worker_->progress();
  complete_sends();
  advance_flush();
  return queued_parts_.empty() && nflushed_ == sent_ && (!is_finishing_ || finish_sent_) && control_->drained();
}

void UcxConnection::post_place(Place &place) {
  place.buffer.resize(sizeof(WireHead) + kSmallWireBody);
  ucx::RequestParam no_immediate;
  no_immediate.mask = ucx::kRequestNotAtOnce;
  place.request =
      api_.ucp_tag_recv_nbx(worker_->get(), place.buffer.data(), place.buffer.size(), head_tag(peer_), kAllBits, &no_immediate);
  note_failure(&place.request);
}

// For a receive that UCX has refused: stores its error.
void UcxConnection::note_failure(void **request) {
  if (ucx::is_request(*request)) return;
  fail_with(ucx::status_of(*request));
  *request = nullptr;
}

// The first error counts.
void UcxConnection::fail_with(ucx::Status8 status) {
  if (failure_ == ucx::kOk) failure_ = status;
}

// Several large bodies may be arriving at a time; each goes where the sink says, in the order of the heads.
Status UcxConnection::read_heads(WireSink &sink) {
  for (; nheads_ - nmessages_ < kPlaces; ++nheads_) {
    Place &place = places_[nheads_ % kPlaces];
    ucx::TagInfo info;
    if (place.request == nullptr) return {};  // UCX has failed
    const ucx::Status8 status = api_.ucp_tag_recv_request_test(place.request, &info);
    if (status == ucx::kInProgress) return {};
    api_.ucp_request_free(place.request);
    place.request = nullptr;
    if (status != ucx::kOk) {
      fail_with(status);
      return {};
    }
    WireHead &head = place.head;
    std::memcpy(&head, place.buffer.data(), sizeof head);
    const bool is_small = head.bytes <= kSmallWireBody;
    if (info.length != sizeof head + (is_small ? head.bytes : 0))
      return fail(ncclInternalError, "it sent a head of %zu bytes", info.length);
    place.body = nullptr;
    if (head.bytes > 0) COLLC_RETURN_IF_FAILED(sink.place(head, &place.body));
    if (is_small) continue;
    ucx::RequestParam no_immediate;
    no_immediate.mask = ucx::kRequestNotAtOnce;
    place.body_request =
        api_.ucp_tag_recv_nbx(worker_->get(), place.body, head.bytes, body_tag(peer_), kAllBits, &no_immediate);
    note_failure(&place.body_request);
    if (place.body_request == nullptr) return {};
  }
  return {};
}

Status UcxConnection::receive(WireSink &sink, bool *moved) {
  if (failure_ == ucx::kOk) COLLC_RETURN_IF_FAILED(read_heads(sink));
  return take_messages(sink, moved);
}

Status UcxConnection::take_messages(WireSink &sink, bool *moved) {
  for (; nmessages_ < nheads_; ++nmessages_) {
    Place &place = places_[nmessages_ % kPlaces];
    if (place.head.bytes > kSmallWireBody) {
      if (place.body_request == nullptr) return {};  // UCX has failed
      ucx::TagInfo info;
      const ucx::Status8 status = api_.ucp_tag_recv_request_test(place.body_request, &info);
      if (status == ucx::kInProgress) return {};
      api_.ucp_request_free(place.body_request);
      place.body_request = nullptr;
      if (status != ucx::kOk) {
        fail_with(status);
        return {};
      }
      if (info.length != place.head.bytes) return fail(ncclInternalError, "it sent a body of %zu bytes", info.length);
    } else if (place.head.bytes > 0) {
      std::memcpy(place.body, place.buffer.data() + sizeof place.head, place.head.bytes);
    }
    *moved = true;
    last_input_ms_ = now_ms();
    const WireHead head = place.head;
    post_place(place);
    COLLC_RETURN_IF_FAILED(sink.take(head));
  }
  return {};
}

void UcxConnection::advance_control() {
  const int64_t now = now_ms();
  if (!control_status_.ok() || now - last_control_ms_ < kControlMs) return;
  last_control_ms_ = now;
  const auto note = [this](ControlNote kind, uint64_t number) { control_->send(control_note(kind, number), nullptr); };
  if (!finish_sent_ && now - last_beat_ms_ >= kNoteMs) {
    last_beat_ms_ = now;
    note(ControlNote::kBeat, 0);
  }
  if (is_finishing_ && !finish_sent_ && queued_parts_.empty() && nflushed_ == sent_) {
    note(ControlNote::kFinished, sent_);
    control_->finish();
    finish_sent_ = true;
  }
  Notes notes(*this);
  bool moved = false;
  control_status_ = control_->progress(notes, &moved, &control_ended_);
}

Status UcxConnection::progress(WireSink &sink, bool *moved, bool *ended) {
  const UcxLock lock;
  if (UcxLock::is_closed()) return {};
  wants_flush_ |= is_finishing_;
  advance_control();
  bool has_input = false;
  const uint64_t sent = sent_;
  worker_->progress();
  complete_sends();
  advance_flush();
  COLLC_RETURN_IF_FAILED(receive(sink, &has_input));
  *moved |= has_input || sent_ != sent;
  const int64_t now = now_ms();
  // Messages that the peer sent before it finished may still be arriving.
  const bool is_complete = peer_total_ == UINT64_MAX || nmessages_ >= peer_total_;
  if (!control_status_.ok() && !has_input && is_complete) {
    *ended = control_ended_;
    return control_status_;
  }
  if (failure_ != ucx::kOk) {
    if (failed_ms_ == 0) failed_ms_ = now;
    if (now - failed_ms_ >= kEndMs)
      return fail(ncclRemoteError, "the connection with %s broke (UCX: %s)", name().c_str(), api_.ucs_status_string(failure_));
    return {};
  }
  if (static_cast<double>(now - last_input_ms_) > silence_ * 1000)
    return fail(ncclRemoteError, "nothing came from %s for %.0f s (COLLC_NET_TIMEOUT)", name().c_str(), silence_);
  return {};
}

}  // namespace collc
