// The engine of UCX: machines connect and prove themselves over TCP, and exchange the addresses of their UCX workers over
// these connections.
#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/sockets.h"
#include "wire/control.h"
#include "wire/ucx_connection.h"

namespace collc {
namespace {

class UcxEngine final : public WireEngine {
 public:
  UcxEngine(std::string interface, std::string devices)
      : interface_(std::move(interface)),
        devices_(std::move(devices)),
        tcp_(make_tcp_engine({{interface_}, {}, {}}, {}, 1, false, "ucx")) {}
  const char *name() const override { return "ucx"; }

  Status listen(Bytes *address) override {
    Id place = {};
    std::string interface;
    COLLC_RETURN_IF_FAILED(choose_public_address(&place, interface_.empty() ? nullptr : interface_.c_str(), &interface));
    COLLC_RETURN_IF_FAILED(UcxWorker::make(interface, devices_, &worker_));
    log(LogLevel::kInfo, "ucx: %s, %s", worker_->api().where.c_str(), worker_->transports().c_str());
    return tcp_->listen(address);
  }

  Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) override {
    const int64_t deadline = now_ms() + static_cast<int64_t>(meeting.seconds * 1000);
    std::vector<std::unique_ptr<WireConnection>> controls;
    COLLC_RETURN_IF_FAILED(tcp_->meet(meeting, &controls));
    std::vector<AddressSink> peers(controls.size());
    Bytes own;
    COLLC_RETURN_IF_FAILED(worker_->address(&own));
    COLLC_RETURN_IF_FAILED(after_verdict(meeting, deadline, exchange_addresses(meeting, deadline, controls, own, &peers)));
    made->clear();
    made->resize(controls.size());
    for (uint32_t m = 0; m < controls.size(); ++m) {
      if (controls[m] == nullptr) continue;
      auto connection = std::make_unique<UcxConnection>(worker_, std::move(controls[m]), meeting.self, m, meeting.silence);
      COLLC_RETURN_IF_FAILED(after_verdict(meeting, deadline, connection->open(peers[m].address(), peers[m].announced())));
      (*made)[m] = std::move(connection);
    }
    return {};
  }

 private:
  std::string interface_, devices_;
  std::unique_ptr<WireEngine> tcp_;
  std::shared_ptr<UcxWorker> worker_;
};

}  // namespace

std::unique_ptr<WireEngine> make_ucx_engine(const std::string &interface, const std::string &devices) {
  return std::make_unique<UcxEngine>(interface, devices);
}

}  // namespace collc
