// The engine of UCX: machines meet and prove themselves over TCP, and tell each other over these connections where their
// workers are.
#include <poll.h>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/sockets.h"
#include "wire/ucx_connection.h"

namespace collc {
namespace {

constexpr uint32_t kMostAddress = 1 << 20;
constexpr int kLookMs = 20;
constexpr int kVerdictMs = 2000;

// Takes one message, the peer's address.
class AddressSink final : public WireSink {
 public:
  Status place(const WireHead &head, char **body) override {
    if (head.kind != static_cast<uint32_t>(UcxNote::kAddress) || head.bytes > kMostAddress || !address_.empty())
      return fail(ncclInternalError, "it sent %u bytes in place of an address of UCX", head.bytes);
    address_.resize(head.bytes);
    *body = reinterpret_cast<char *>(address_.data());
    return {};
  }
  // The peer may have begun with what follows.
  Status take(const WireHead &head) override {
    complete_ |= head.kind == static_cast<uint32_t>(UcxNote::kAddress);
    if (head.kind == static_cast<uint32_t>(UcxNote::kFinished)) announced_ = head.number;
    return {};
  }
  uint64_t announced() const { return announced_; }
  bool complete() const { return complete_; }
  const Bytes &address() const { return address_; }

 private:
  Bytes address_;
  bool complete_ = false;
  uint64_t announced_ = UINT64_MAX;
};

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
    COLLC_RETURN_IF_FAILED(after_verdict(meeting, exchange(meeting, deadline, controls, &peers)));
    made->clear();
    made->resize(controls.size());
    for (uint32_t m = 0; m < controls.size(); ++m) {
      if (controls[m] == nullptr) continue;
      auto connection = std::make_unique<UcxConnection>(worker_, std::move(controls[m]), meeting.self, m, meeting.silence);
      COLLC_RETURN_IF_FAILED(after_verdict(meeting, connection->open(peers[m].address(), peers[m].announced())));
      (*made)[m] = std::move(connection);
    }
    return {};
  }

 private:
  // That a peer's process has ended shows here as a machine that is out of reach; that a rank has left is known a moment later.
  static Status after_verdict(const WireMeeting &meeting, const Status &status) {
    for (const int64_t start = now_ms(); !status.ok() && !meeting.stop() && now_ms() - start < kVerdictMs;)
      poll(nullptr, 0, kLookMs);
    return status;
  }

  Status exchange(const WireMeeting &meeting, int64_t deadline, const std::vector<std::unique_ptr<WireConnection>> &controls,
                  std::vector<AddressSink> *peers) const {
    Bytes own;
    COLLC_RETURN_IF_FAILED(worker_->address(&own));
    for (const auto &control : controls)
      if (control != nullptr)
        control->send({static_cast<uint32_t>(UcxNote::kAddress), 0, 0, 0, static_cast<uint32_t>(own.size()), 0}, own.data());
    for (;;) {
      std::vector<pollfd> polled;
      for (size_t m = 0; m < controls.size(); ++m) {
        if (controls[m] == nullptr || ((*peers)[m].complete() && controls[m]->queued_bytes() == 0)) continue;
        bool moved = false, ended = false;
        const Status status = controls[m]->progress((*peers)[m], &moved, &ended);
        // A peer whose address is here may go on, and end, at any time: that is for the courier to see.
        if (!status.ok() && !(*peers)[m].complete()) return status;
        controls[m]->add_to(&polled);
      }
      if (polled.empty()) return {};
      if (meeting.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline)
        return fail(ncclSystemError, "no address of UCX came after %.0f s from every machine", meeting.seconds);
      poll(polled.data(), polled.size(), kLookMs);
    }
  }

  std::string interface_, devices_;
  std::unique_ptr<WireEngine> tcp_;
  std::shared_ptr<UcxWorker> worker_;
};

}  // namespace

std::unique_ptr<WireEngine> make_ucx_engine(const std::string &interface, const std::string &devices) {
  return std::make_unique<UcxEngine>(interface, devices);
}

}  // namespace collc
