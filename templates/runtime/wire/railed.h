// A connection between two machines that has several rails: each carries pieces of chunks, and one of them all other messages as well.
//
// Messages beside the rails have numbers; who sends them keeps them until they have come, and says them again over another rail
// when theirs is lost. A rail is lost when its connection breaks, or when nothing comes over it while something comes over
// others. It is closed at both ends; each says how much of it has come, and what has not is sent again over others. The machine that
// called before calls again until the rail is back. That happens without anybody noticing but in the log; with the last rail the machine is lost.
// Before that, when nothing has come over any rail for a while, the spare is called and used as one more rail.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>

#include "base/log.h"
#include "wire/messages.h"
#include "wire/tcp_connection.h"
#include "wire/tcp_party.h"

namespace collc {

class RailedConnection final : public WireConnection, public Rails {
 public:
  // `made`: the rails' sockets and the spare's, connected, both ends authenticated; nobody: it may still come. `attempts`: calls made so far.
  RailedConnection(std::shared_ptr<const TcpParty> party, std::shared_ptr<TcpDoors> doors, uint32_t machine,
                   std::vector<TcpDoors::Visitor> made, const std::vector<uint64_t> &attempts, double silence);
  ~RailedConnection() override;

  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return acknowledged_ + kept_.size(); }
  uint64_t sent() const override { return acknowledged_; }
  uint64_t queued_bytes() const override { return kept_bytes_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override;
  void finish() override {}
  void add_to(std::vector<pollfd> *polled) const override;
  Rails *rails() override { return this; }
  std::vector<std::string> interfaces() const override { return party_->interfaces(); }
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
    std::unique_ptr<TcpCaller> caller;  // null: the other one calls
    TcpDoors::Visitor visitor;  // the next connection
    uint64_t generation = 0, open_there = 0;  // of the connection; of that which the peer takes chunks from
    RailLoad load;  // what goes over it from here
    DeliveryRate rate;  // of what comes to here
    uint64_t came = 0, told_came = 0;  // messages on the rail to here, and of those, what was told
    int64_t told_ms = 0, judged_ms = 0;
    int64_t used_ms = 0;  // when something was sent on it last
    uint64_t next_control = 0;  // number of the next message beside the rails that comes over it
    std::map<uint64_t, uint64_t> past;  // of earlier connections, how many messages the peer had of each
    double speed = 0;  // of the interfaces
    bool probing = false, doomed = false;  // a probe comes; the peer has closed it
  };
  struct Kept {
    WireHead head;
    const void *body;
  };

  Status place(uint32_t rail, const WireHead &head, char **body);
  Status take(uint32_t rail, const WireHead &head);
  Status take_control(Rail &rail, const WireHead &head);
  Status take_own(Rail &rail, const WireHead &head);
  Status take_about_rail(const WireHead &head);
  static bool may_send(const Rail &rail) { return rail.tcp != nullptr && !rail.doomed && rail.open_there == rail.generation; }
  // When something has come over any rail.
  int64_t heard_ms() const {
    int64_t heard = 0;
    for (const Rail &rail : rails_)
      if (rail.tcp != nullptr) heard = std::max(heard, rail.tcp->heard_ms());
    return heard;
  }
  RailTicket put(uint32_t rail, const WireHead &head, const void *body);
  void probe(uint32_t rail);
  void open(uint32_t rail, TcpDoors::Visitor visitor);
  void close(uint32_t rail, const std::string &why, LogLevel level);
  void reopen();
  bool call_spare(Rail &rail, int64_t silent_ms);
  Status move(WireSink &sink, bool *moved);
  void judge();
  void acknowledge();
  void measure();
  void speak_over(uint32_t rail);
  uint32_t best_rail() const;
  uint32_t nopen() const;

  std::shared_ptr<const TcpParty> party_;
  std::shared_ptr<TcpDoors> doors_;
  uint32_t machine_;
  double silence_;
  std::string name_;
  std::vector<Rail> rails_;
  std::vector<double> rates_;  // to there, in bytes per microsecond; 0: closed
  std::deque<RailEnd> ends_;  // not yet told
  WireSink *sink_ = nullptr;  // of the lanes, while anything moves
  bool broken_ = false;  // by what the peer said
  uint32_t speaker_ = 0;  // the rail of messages beside the rails
  std::deque<Kept> kept_;  // said, and not known to have come
  uint64_t acknowledged_ = 0, kept_bytes_ = 0;
  uint64_t heard_ = 0, told_heard_ = 0;  // messages beside the rails that came, and of those, what was told
  Status last_;  // of the rail that was lost last
  bool last_ended_ = false;
  int64_t ended_ms_ = 0, judged_ms_ = 0, made_ms_;
  int64_t attended_ms_ = 0, answered_ms_ = 0;  // since when all is read as it comes; when the spare's call was taken
  int64_t used_ms_ = 0;  // when chunks were sent last
  bool ready_ = false;  // enough is known of rates
  std::vector<char> probe_;
  std::vector<RailState> states_;  // scratch of choose()
};

}  // namespace collc
