// One communicator's connection with one other machine: what is sent, what comes, and how it ends.
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
  // `processes`: a number of its process for each rank; the other courier is in that of the machine's first rank.
  Link(const LaneContext &context, const std::vector<uint64_t> &processes, uint32_t machine,
       std::unique_ptr<WireConnection> connection);

  // Moves what can be moved; true if anything did.
  bool advance();
  // False once nothing will ever be sent or come again, nor have ranks to be told of that.
  bool open() const { return connection_ != nullptr || stands_; }
  // True if all ranks here have gone and the other machine has everything they sent.
  bool settled() const { return connection_ == nullptr || (goodbye_said_ && connection_->drained()); }
  void add_to(std::vector<pollfd> *polled) const {
    if (connection_ != nullptr) connection_->add_to(polled);
  }

  Status place(const WireHead &head, char **body) override;
  Status take(const WireHead &head) override;

 private:
  void keep_alive();
  // The connection is gone: for a reason that is right, or the ranks there are, or the communicator ends.
  void lose(const Status &why, bool ended);
  void mourn();
  // The connection with a rank of this server is gone: their class of links has failed, and with it the call that it was to carry.
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
  int64_t lost_ms_ = 0;  // 0: not lost
  std::string lost_why_;
  bool one_server_;      // the machines are ranks of one server
  bool stands_ = false;  // the rank here has not heard the last of it
  int64_t stranded_ms_ = 0;  // since when a chunk has been there that nobody will see; 0: none is
};

}  // namespace collc
