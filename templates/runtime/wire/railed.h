// A connection between two machines with several rails: each carries pieces of chunks, and one of them (the speaker) also
// carries all control messages, which are all messages that are not sent on a rail.
//
// Control messages have numbers. The sender keeps each until it has arrived, and sends it again over another rail when the
// speaker is lost. A rail is lost when its connection breaks, or when nothing comes over it while something comes over
// others. Both ends close it; each reports how many messages of it have arrived, and the others are sent again over other
// rails. The machine that made the connection tries again until the rail is back. The job notices nothing, only the log
// reports it. When the last rail is lost, the machine is lost. Before that, when nothing has come over any rail for a while,
// the spare is connected and used as one more rail.
//
// Only the proxy thread uses the object; no function blocks.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "base/log.h"
#include "wire/messages.h"
#include "wire/tcp_connection.h"
#include "wire/tcp_peers.h"

namespace collc {

class RailedConnection final : public WireConnection, public Rails {
 public:
  // `sockets`: the authenticated sockets of the rails and of the spare; an empty one may still come. `attempts`: connection
  // attempts so far, by rail.
  RailedConnection(std::shared_ptr<const TcpPeers> peers, std::shared_ptr<TcpListeners> listeners, uint32_t machine,
                   std::vector<TcpSocket> sockets, const std::vector<uint64_t> &attempts, double silence);
  ~RailedConnection() override;

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return acknowledged_ + pending_.size(); }
  uint64_t sent() const override { return acknowledged_; }
  uint64_t queued_bytes() const override { return pending_bytes_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override {}
  void add_to(std::vector<pollfd> *polled) const override;
  Rails *rails() override { return this; }
  std::vector<std::string> interfaces() const override { return peers_->interfaces(); }
  const std::string &name() const override { return name_; }

  RailPiece choose(uint32_t bytes, uint32_t left) override;
  bool take_end(RailEnd *end) override {
    if (ends_.empty()) return false;
    *end = ends_.front();
    ends_.pop_front();
    return true;
  }
  RailTicket send_on(uint32_t rail, const WireHead &head, const void *body) override;
  bool has_arrived(const RailTicket &ticket) const override;

 private:
  class RailSink;
  struct Rail {
    std::unique_ptr<TcpConnection> tcp;  // null: lost
    std::unique_ptr<RailSink> sink;
    std::unique_ptr<TcpConnector> connector;  // null: the other machine connects
    TcpSocket next_socket;  // the next connection, if it has come
    uint64_t generation = 0;       // number of this connection
    uint64_t peer_generation = 0;  // of the connection on which the peer accepts chunks
    RailLoad load;  // of messages that this end sends
    DeliveryRate rate;  // of messages that come
    uint64_t arrived = 0, reported_arrived = 0;  // messages on the rail that have come, and how many of them have been reported
    int64_t reported_ms = 0, judged_ms = 0;
    int64_t send_ms = 0;  // when something was sent on it last (ms)
    uint64_t next_control = 0;  // number of the next control message that comes over it
    std::map<uint64_t, uint64_t> earlier_arrived;  // for earlier connections: messages of each that the peer received
    double speed = 0;  // of the interfaces, in bytes per microsecond
    bool is_probing = false, is_closed_by_peer = false;  // a probe is arriving; the peer has closed the rail
  };
  struct PendingMessage {
    WireHead head;
    const void *body;
  };

  Status place(uint32_t rail, const WireHead &head, char **body);
  Status take(uint32_t rail, const WireHead &head);
  Status take_control(Rail &rail, const WireHead &head);
  Status take_report(Rail &rail, const WireHead &head);
  Status take_about_rail(const WireHead &head);
  static bool may_send(const Rail &rail) {
    return rail.tcp != nullptr && !rail.is_closed_by_peer && rail.peer_generation == rail.generation;
  }
  // Returns when something has come over any rail.
  int64_t heard_ms() const {
    int64_t heard = 0;
    for (const Rail &rail : rails_)
      if (rail.tcp != nullptr) heard = std::max(heard, rail.tcp->heard_ms());
    return heard;
  }
  RailTicket put(uint32_t rail, const WireHead &head, const void *body);
  void probe(uint32_t rail);
  void open(uint32_t rail, TcpSocket socket);
  void close(uint32_t rail, const std::string &why, LogLevel level);
  void reopen();
  bool connect_spare(Rail &rail, int64_t silent_ms);
  Status move(WireSink &sink, bool *moved);
  void close_bad_rails();
  void acknowledge();
  void measure();
  void switch_control_rail(uint32_t rail);
  uint32_t best_rail() const;
  uint32_t nopen() const;

  std::shared_ptr<const TcpPeers> peers_;
  std::shared_ptr<TcpListeners> listeners_;
  uint32_t machine_;
  double silence_;
  std::string name_;
  std::vector<Rail> rails_;
  std::vector<double> rates_;  // towards the peer, in bytes per microsecond; 0: closed
  std::deque<RailEnd> ends_;  // that the remote queues have not taken yet
  WireSink *sink_ = nullptr;  // of the remote queues, during progress()
  bool is_invalid_ = false;  // by an invalid message of the peer
  uint32_t control_rail_ = 0;  // the rail that carries control messages
  std::deque<PendingMessage> pending_;  // control messages that were sent and are not known to have arrived
  uint64_t acknowledged_ = 0, pending_bytes_ = 0;
  uint64_t received_ = 0, reported_received_ = 0;  // control messages that have come, and how many of them have been reported
  Status last_error_;  // the error of the rail that was lost last
  bool last_ended_ = false;
  int64_t ended_ms_ = 0, judged_ms_ = 0, start_ms_;
  // Since when input has been read without a break; when the peer accepted the connection of the spare.
  int64_t reading_since_ms_ = 0, spare_ms_ = 0;
  int64_t send_ms_ = 0;  // when a chunk was sent last
  bool rates_known_ = false;  // enough rates are known to send chunks
  std::vector<char> probe_;
  std::vector<RailState> states_;  // scratch of choose()
};

}  // namespace collc
