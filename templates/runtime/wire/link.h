// One communicator's connection with another machine: sends, receives, and decides how it ends. Only the proxy thread uses
// it; no function blocks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "wire/lanes.h"
#include "wire/mirror.h"
#include "wire/wire.h"

namespace collc {

class Link final : public WireSink {
 public:
  // `processes` has the number of each rank's process. The proxy thread of the other machine is in the process of its first
  // rank.
  Link(const LaneContext &context, const std::vector<uint64_t> &processes, uint32_t machine,
       std::unique_ptr<WireConnection> connection);

  // Moves what can be moved; returns whether anything moved.
  bool advance();
  // Returns false once nothing will be sent or received any more and no rank has to be told so.
  bool open() const { return connection_ != nullptr || stands_; }
  // Returns whether all local ranks have gone and the other machine has received everything that they sent.
  bool settled() const { return connection_ == nullptr || (goodbye_said_ && connection_->drained()); }
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
  void mourn();
  // After the loss of the connection to another rank of this server: reports that the path class has failed, and aborts if a
  // chunk of the running call is lost with it.
  void stand();
  std::string ranks_there() const;

  Segment &segment_;
  Placement placement_;
  std::vector<uint64_t> processes_;
  uint32_t machine_;
  Lanes lanes_;
  Mirror mirror_;
  std::unique_ptr<WireConnection> connection_;
  int64_t told_ms_;
  bool goodbye_said_ = false, goodbye_heard_ = false;
  int64_t lost_ms_ = 0;  // 0: not lost; otherwise ms
  std::string lost_why_;
  bool one_server_;      // the "machines" are ranks of one server
  bool stands_ = false;  // lost, but the local rank still uses the communicator
  int64_t stranded_ms_ = 0;  // since when there has been a chunk that no reader will get (ms); 0: there is none
};

}  // namespace collc
