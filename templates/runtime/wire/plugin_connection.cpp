#include "wire/plugin_connection.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace collc {
namespace {

constexpr int64_t kTalkMs = 1, kBeatEveryMs = 1000;
// When the peer's process ends, the plugin may notice before the TCP connection does, which tells an end from a broken network.
constexpr int64_t kSureMs = 1000;
constexpr int64_t kComingMs = 20;
// Beats of machines that are still joined with others have 0.
constexpr uint64_t kAllJoined = 1;
// What a card sends in that time keeps it busy while the next chunks are told.
constexpr double kBusyUs = 200;
constexpr double kMostEnough = 2 << 20;

}  // namespace

// What comes over the TCP connection once the plugin carries the messages.
class PluginConnection::Notes final : public NoteSink {
 public:
  explicit Notes(PluginConnection &connection) : connection_(connection) {}
  Status take(const WireHead &head) override {
    connection_.peer_over_ |= head.kind == static_cast<uint32_t>(ControlNote::kFinished);
    connection_.peer_closed_ |= head.kind == static_cast<uint32_t>(ControlNote::kClosed);
    const bool joined = head.kind == static_cast<uint32_t>(ControlNote::kBeat) && head.number == kAllJoined;
    if (joined && connection_.heard_ms_ == 0) connection_.heard_ms_ = now_ms();
    return {};
  }

 private:
  PluginConnection &connection_;
};

PluginConnection::PluginConnection(std::shared_ptr<PluginNet> net, PluginComms comms, std::unique_ptr<WireConnection> control,
                                   std::shared_ptr<Peers> peers, double silence)
    : net_(std::move(net)),
      comms_(std::move(comms)),
      control_(std::move(control)),
      peers_(std::move(peers)),
      silence_(silence),
      enough_(static_cast<uint64_t>(std::clamp(net_->mbits() / 8 * kBusyUs, static_cast<double>(kMostQueued), kMostEnough))),
      places_(kWindow) {
  peers_->push_back(this);
}

Status PluginConnection::open() {
  const ForeignTurn turn;
  COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
  const auto enroll_room = [this](PluginComm &comm, std::shared_ptr<OwnPages> *room) -> Status {
    COLLC_RETURN_IF_FAILED(OwnPages::make(kWindow * sizeof(Words), room));
    return enroll(comm, (*room)->begin(), (*room)->bytes(), *room);
  };
  COLLC_RETURN_IF_FAILED(enroll_room(*comms_.heads_out, &heads_out_));
  return enroll_room(*comms_.heads_in, &heads_in_);
}

// A plugin may take its time for that, and every machine waits for this one.
Status PluginConnection::enroll(PluginComm &comm, char *memory, uint64_t bytes, const std::shared_ptr<const void> &owner,
                                bool on_gpu) const {
  show_life();
  const Status status = comm.enroll(memory, bytes, owner, on_gpu);
  show_life();
  return status;
}

void PluginConnection::show_life() const {
  for (PluginConnection *const one : *peers_) one->advance_control();
}

PluginConnection::~PluginConnection() {
  peers_->erase(std::remove(peers_->begin(), peers_->end(), this), peers_->end());
  const ForeignTurn turn;
  const auto gpu = ForeignTurn::over() ? nullptr : use_gpu();
  for (std::unique_ptr<PluginComm> *const comm : {&comms_.bodies_in, &comms_.heads_in, &comms_.bodies_out, &comms_.heads_out})
    comm->reset();
}

void PluginConnection::finish() {
  if (finishing()) return;
  last_ = queued();
  parts_.insert(parts_.end(), kWindow, {WireHead(), nullptr, {nullptr, nullptr}, false});
}

// True if nothing is to be waited for any more, or the peer has gone. Closes one half before that.
bool PluginConnection::part() {
  const bool alone = !control_status_.ok();
  if (!is_over() || !(peer_over_ || alone)) return false;
  if (comms_.heads_in != nullptr) {
    comms_.bodies_in.reset();
    comms_.heads_in.reset();
    if (!alone) control_->send(control_note(ControlNote::kClosed, 0), nullptr);
  }
  return alone || (peer_closed_ && control_->drained());
}

Status PluginConnection::use_memory(const WireMemory &memory) {
  const ForeignTurn turn;
  COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
  if (memory.gpu && !net_->takes_gpus()) return fail(ncclInvalidUsage, "%s takes no memory of GPUs", net_->device().c_str());
  if (memory.gpu) gpu_ = memory.gpu;
  const auto gpu = use_gpu();
  Status status;
  if (memory.largest > net_->most_bytes())
    status =
        fail(ncclInvalidUsage, "chunks of %llu bytes are more than %s takes at once (%llu); COLLC_CHUNK makes them smaller",
             static_cast<unsigned long long>(memory.largest), net_->plugin().name().c_str(),
             static_cast<unsigned long long>(net_->most_bytes()));
  PluginComm &comm = memory.incoming ? *comms_.bodies_in : *comms_.bodies_out;
  if (status.ok()) status = enroll(comm, memory.begin, memory.bytes, memory.owner, memory.gpu != nullptr);
  if (status.ok() || memory.gpu) return status;
  return fail(status.code(), "engine plugin: no connection with %s: %s", name().c_str(), status.text().c_str());
}

void PluginConnection::forget_memory(const WireMemory &memory) {
  const ForeignTurn turn;
  const auto gpu = use_gpu();
  (memory.incoming ? comms_.bodies_in : comms_.bodies_out)->forget(memory.begin);
}

void PluginConnection::send(const WireHead &head, const void *body) {
  const auto *const begin = static_cast<const char *>(body);
  const auto lies_apart = [&](const PluginComm &comm) {
    return comm.is_on_gpu(begin) || (apart_ && comm.knows(begin, head.bytes));
  };
  const bool apart = is_large(head) || (head.bytes > 0 && lies_apart(*comms_.bodies_out));
  parts_.push_back({head, begin, {nullptr, nullptr}, apart});
  queued_bytes_ += sizeof head + head.bytes;
}

Status PluginConnection::post_parts() {
  const auto part = [this](uint64_t number) -> Part & { return parts_[number - sent_]; };
  const uint64_t end = sent_ + std::min<uint64_t>(parts_.size(), kWindow);
  for (; heads_posted_ < end; ++heads_posted_) {
    Part &one = part(heads_posted_);
    Words &words = words_in(*heads_out_, heads_posted_);
    const uint32_t beside = one.apart ? 0 : one.head.bytes;
    words.head = one.head;
    words.apart = one.apart ? 1 : 0;
    words.kind = heads_posted_ >= last_ ? Words::kNothing : heads_posted_ + 1 == last_ ? Words::kLast : Words::kMore;
    if (beside > 0) std::memcpy(words.body, one.body, beside);
    COLLC_RETURN_IF_FAILED(comms_.heads_out->post(reinterpret_cast<char *>(&words), kHeadBytes + beside, &one.requests[0]));
    if (one.requests[0] == nullptr) break;
  }
  for (; bodies_posted_ < heads_posted_; ++bodies_posted_) {
    Part &one = part(bodies_posted_);
    if (!one.apart) continue;
    COLLC_RETURN_IF_FAILED(comms_.bodies_out->post(const_cast<char *>(one.body), one.head.bytes, &one.requests[1]));
    if (one.requests[1] == nullptr) break;
  }
  return {};
}

// Plugins move what is posted when they are asked about it, so a head is asked about though its body is not posted yet.
// Messages count as sent in their order.
Status PluginConnection::complete_parts() {
  const auto complete = [this](PluginComm &comm, size_t which, uint64_t posted, uint64_t *done) -> Status {
    for (; *done < posted; ++*done) {
      void *&request = parts_[*done - sent_].requests[which];
      size_t bytes = 0;
      if (request != nullptr) COLLC_RETURN_IF_FAILED(comm.test(&request, &bytes));
      if (request != nullptr) break;
    }
    return {};
  };
  COLLC_RETURN_IF_FAILED(complete(*comms_.heads_out, 0, heads_posted_, &heads_done_));
  COLLC_RETURN_IF_FAILED(complete(*comms_.bodies_out, 1, bodies_posted_, &bodies_done_));
  for (; sent_ < std::min(heads_done_, bodies_done_); ++sent_) {
    if (sent_ < last_) queued_bytes_ -= sizeof(WireHead) + parts_.front().head.bytes;
    parts_.pop_front();
  }
  return {};
}

Status PluginConnection::post_places() {
  for (const uint64_t end = std::min(taken_ + kWindow, total_); placed_ < end; ++placed_) {
    Words &words = words_in(*heads_in_, placed_);
    Place &place = places_[placed_ % kWindow];
    COLLC_RETURN_IF_FAILED(comms_.heads_in->post(reinterpret_cast<char *>(&words), sizeof words, &place.head_request));
    if (place.head_request == nullptr) break;
  }
  return {};
}

// Bodies apart are received beside each other, each to where the sink says in the order of the heads.
Status PluginConnection::see_heads(WireSink &sink) {
  for (; seen_ < placed_; ++seen_) {
    Place &place = places_[seen_ % kWindow];
    const Words &words = words_in(*heads_in_, seen_);
    size_t bytes = 0;
    COLLC_RETURN_IF_FAILED(comms_.heads_in->test(&place.head_request, &bytes));
    if (place.head_request != nullptr) return {};
    if (bytes < kHeadBytes || bytes != kHeadBytes + (words.apart != 0 ? 0 : words.head.bytes))
      return fail(ncclInternalError, "it sent a head of %zu bytes", bytes);
    place.body = nullptr;
    if (words.kind == Words::kNothing && words.head.bytes > 0)
      return fail(ncclInternalError, "it sent an end of %u bytes", words.head.bytes);
    if (words.head.bytes > 0) COLLC_RETURN_IF_FAILED(sink.place(words.head, &place.body));
    if (words.apart == 0 ? words.head.bytes > 0 && comms_.bodies_in->is_on_gpu(place.body) : words.head.bytes == 0)
      return fail(ncclInternalError, "it sent a body of %u bytes where none can be", words.head.bytes);
  }
  return {};
}

Status PluginConnection::post_bodies() {
  for (; awaited_ < seen_; ++awaited_) {
    Place &place = places_[awaited_ % kWindow];
    const Words &words = words_in(*heads_in_, awaited_);
    if (words.apart == 0) continue;
    COLLC_RETURN_IF_FAILED(comms_.bodies_in->post(place.body, words.head.bytes, &place.body_request));
    if (place.body_request == nullptr) break;
  }
  return {};
}

Status PluginConnection::take_body(Place &place, const WireHead &head, bool *is_there) {
  PluginComm &comm = *comms_.bodies_in;
  size_t bytes = 0;
  *is_there = false;
  if (place.body_request != nullptr) {
    COLLC_RETURN_IF_FAILED(comm.test(&place.body_request, &bytes));
    if (place.body_request != nullptr) return {};
    if (bytes != head.bytes) return fail(ncclInternalError, "it sent a body of %zu bytes", bytes);
    if (comm.is_on_gpu(place.body)) COLLC_RETURN_IF_FAILED(comm.flush(place.body, head.bytes, &place.flush_request));
  }
  if (place.flush_request != nullptr) COLLC_RETURN_IF_FAILED(comm.test(&place.flush_request, &bytes));
  *is_there = place.flush_request == nullptr;
  return {};
}

Status PluginConnection::take_messages(WireSink &sink, bool *moved) {
  for (; taken_ < awaited_; ++taken_) {
    Place &place = places_[taken_ % kWindow];
    const Words &words = words_in(*heads_in_, taken_);
    const WireHead head = words.head;
    if (words.apart != 0) {
      bool is_there = false;
      COLLC_RETURN_IF_FAILED(take_body(place, head, &is_there));
      if (!is_there) return {};
    } else if (head.bytes > 0) {
      std::memcpy(place.body, words.body, head.bytes);
    }
    *moved = true;
    heard_ms_ = now_ms();
    if (words.kind != Words::kMore && total_ == UINT64_MAX) total_ = taken_ + kWindow + (words.kind == Words::kLast ? 1 : 0);
    if (words.kind != Words::kNothing) COLLC_RETURN_IF_FAILED(sink.take(head));
  }
  return {};
}

Status PluginConnection::advance(WireSink &sink, bool *moved) {
  COLLC_RETURN_IF_FAILED(complete_parts());
  COLLC_RETURN_IF_FAILED(post_parts());
  COLLC_RETURN_IF_FAILED(see_heads(sink));
  COLLC_RETURN_IF_FAILED(post_bodies());
  COLLC_RETURN_IF_FAILED(take_messages(sink, moved));
  return post_places();
}

void PluginConnection::advance_control() {
  const int64_t now = now_ms();
  if (!control_status_.ok() || now - controlled_ms_ < kTalkMs) return;
  controlled_ms_ = now;
  const auto note = [this](ControlNote kind, uint64_t number) { control_->send(control_note(kind, number), nullptr); };
  if (now - beat_ms_ >= kBeatEveryMs) {
    beat_ms_ = now;
    note(ControlNote::kBeat, joined_ ? kAllJoined : 0);
  }
  if (is_over() && !told_over_) {
    told_over_ = true;
    note(ControlNote::kFinished, sent_);
  }
  Notes notes(*this);
  bool moved = false;
  control_status_ = control_->progress(notes, &moved, &control_ended_);
  control_ended_ms_ = now;
}

Status PluginConnection::progress(WireSink &sink, bool *moved, bool *ended) {
  const ForeignTurn turn;
  if (ForeignTurn::over()) return {};
  const auto gpu = use_gpu();
  if (!joined_ && heard_ms_ != 0) heard_ms_ = now_ms();  // nobody has listened until now
  joined_ = true;
  advance_control();
  bool came = false;
  const uint64_t sent = sent_;
  if (failure_.ok()) failure_ = advance(sink, &came);
  *moved |= came || sent_ != sent;
  const int64_t now = now_ms();
  if (came) came_ms_ = now;
  if (failure_.ok() && part()) {
    *ended = true;
    return fail(ncclRemoteError, "%s has closed its connection", name().c_str());
  }
  // What the peer sent before its end is on the way.
  if (!control_status_.ok() && now - std::max(came_ms_, control_ended_ms_) >= kComingMs) {
    *ended = control_ended_;
    return control_status_;
  }
  if (!failure_.ok()) {
    if (failed_ms_ == 0) failed_ms_ = now;
    if (now - failed_ms_ >= kSureMs)
      return fail(failure_.code(), "the connection with %s broke (%s)", name().c_str(), failure_.text().c_str());
    return {};
  }
  if (heard_ms_ != 0 && static_cast<double>(now - heard_ms_) > silence_ * 1000)
    return fail(ncclRemoteError, "nothing came from %s for %.0f s (COLLC_NET_TIMEOUT)", name().c_str(), silence_);
  return {};
}

}  // namespace collc
