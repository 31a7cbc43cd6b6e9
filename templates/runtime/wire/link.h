// One communicator's connection with another machine: sends, receives, and decides how it ends. Only the proxy thread uses
// it; no function blocks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "wire/remote_queues.h"
#include "wire/remote_ranks.h"
#include "wire/wire.h"

namespace collc {

class Link final : public WireSink {
 public:
  // `processes` has the number of each rank's process. The proxy thread of the other machine is in the process of its first
  // rank.
  Link(const RemoteContext &context, const std::vector<uint64_t> &processes, uint32_t machine,
       std::unique_ptr<WireConnection> connection);

  // Moves what can be moved; returns whether anything moved.
  bool advance();
  // Returns false once nothing will be sent or received any more and no rank has to be told so.
  bool open() const { return connection_ != nullptr || reports_failure_; }
  // Returns whether all local ranks have gone and the other machine has received everything that they sent.
  bool is_settled() const { return connection_ == nullptr || (goodbye_sent_ && connection_->drained()); }
  void add_to(std::vector<pollfd> *polled) const {
    if (connection_ != nullptr) connection_->add_to(polled);
  }

  Status place(const WireHead &head, char **body) override;
  Status take(const WireHead &head) override;

 private:
  void keep_alive();
  // Handles the loss of the connection. Nothing follows if the ranks at one end have gone. Between ranks of one server, a
  // path class has failed. Otherwise the communicator is aborted; if the peer closed the connection, the ranks of its proxy
  // thread's process count as dead first, and the abort follows 1 s later.
  void lose(const Status &why, bool ended);
  void abort_later();
  // After the loss of the connection to another rank of this server: reports that the path class has failed, and aborts if a
  // chunk of the running call is lost with it.
  void report_failure();
  std::string describe_remote_ranks() const;

  Segment &segment_;
  Placement placement_;
  std::vector<uint64_t> processes_;
  uint32_t machine_;
  RemoteQueues queues_;
  RemoteRanks remote_ranks_;
  std::unique_ptr<WireConnection> connection_;
  int64_t beat_ms_;
  bool goodbye_sent_ = false, goodbye_received_ = false;
  int64_t lost_ms_ = 0;  // 0: not lost; otherwise ms
  std::string loss_reason_;
  bool one_server_;      // the "machines" are ranks of one server
  bool reports_failure_ = false;  // lost, but the local rank still uses the communicator
  int64_t stranded_ms_ = 0;  // since when there has been a chunk that no reader will get (ms); 0: there is none
};

}  // namespace collc
