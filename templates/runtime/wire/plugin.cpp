// The engine of NCCL's network plugins: machines meet and prove themselves over TCP, and give each other the handles of their
// plugins over these connections.
#include <poll.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "wire/plugin_connection.h"

namespace collc {
namespace {

constexpr int kWaitMs = 1;
constexpr size_t kComms = 2;  // each way: for heads and for bodies

// What a machine tells another one.
struct PluginAddress {
  char plugin[64];
  char handles[kComms][nccl_net::kHandleBytes];
};

// The comms with one machine, while they are made.
class Meeting {
 public:
  explicit Meeting(std::shared_ptr<PluginNet> net) : net_(std::move(net)) {}
  ~Meeting() {
    const ForeignTurn turn;
    if (ForeignTurn::over()) return;
    for (void *const one : listening_)
      if (one != nullptr) static_cast<void>(net_->table().close_listen(one));
  }
  Meeting(const Meeting &) = delete;
  Meeting &operator=(const Meeting &) = delete;

  Status listen(Bytes *told) {
    const ForeignTurn turn;
    COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
    PluginAddress own = {};
    own.plugin[net_->plugin().name().copy(own.plugin, sizeof own.plugin - 1)] = 0;
    for (size_t k = 0; k < kComms; ++k) {
      COLLC_RETURN_IF_FAILED(net_->listen(handles_[k].words, &listening_[k]));
      std::memcpy(own.handles[k], handles_[k].words, nccl_net::kHandleBytes);
    }
    const auto *const words = reinterpret_cast<const unsigned char *>(&own);
    told->assign(words, words + sizeof own);
    return {};
  }

  Status set_peer(const Bytes &told, const std::string &name) {
    PluginAddress peer;
    if (told.size() != sizeof peer)
      return fail(ncclInternalError, "engine plugin: an address of %zu bytes came from %s", told.size(), name.c_str());
    std::memcpy(&peer, told.data(), sizeof peer);
    peer.plugin[sizeof peer.plugin - 1] = 0;
    if (std::strncmp(peer.plugin, net_->plugin().name().c_str(), sizeof peer.plugin - 1) != 0)
      return fail(ncclInvalidUsage, "engine plugin: %s uses the network plugin %s, this machine %s", name.c_str(),
                  printable(peer.plugin).c_str(), net_->plugin().where().c_str());
    // A plugin notes in a handle how far it has come.
    for (size_t k = 0; k < kComms; ++k) std::memcpy(handles_[k].words, peer.handles[k], nccl_net::kHandleBytes);
    return {};
  }

  bool complete() const { return comms_.heads_out && comms_.bodies_out && comms_.heads_in && comms_.bodies_in; }
  // Goes on with all that is not made yet.
  Status advance() {
    const ForeignTurn turn;
    COLLC_RETURN_IF_FAILED(ForeignTurn::check("plugin"));
    std::unique_ptr<PluginComm> *const out[kComms] = {&comms_.heads_out, &comms_.bodies_out};
    std::unique_ptr<PluginComm> *const in[kComms] = {&comms_.heads_in, &comms_.bodies_in};
    for (size_t k = 0; k < kComms; ++k) {
      void *comm = nullptr;
      if (*out[k] == nullptr) COLLC_RETURN_IF_FAILED(net_->connect(handles_[k].words, &comm));
      if (comm != nullptr) *out[k] = std::make_unique<PluginComm>(net_, comm, true);
      comm = nullptr;
      if (*in[k] == nullptr) COLLC_RETURN_IF_FAILED(net_->accept(listening_[k], &comm));
      if (comm == nullptr) continue;
      *in[k] = std::make_unique<PluginComm>(net_, comm, false);
      COLLC_RETURN_IF_FAILED(net_->check("closeListen", net_->table().close_listen(std::exchange(listening_[k], nullptr))));
    }
    return {};
  }
  PluginComms take() { return std::move(comms_); }

 private:
  struct alignas(64) Handle {
    char words[nccl_net::kHandleBytes] = {};
  };
  std::shared_ptr<PluginNet> net_;
  std::array<void *, kComms> listening_ = {};
  std::array<Handle, kComms> handles_;  // own ones, then the peer's
  PluginComms comms_;
};

class PluginEngine final : public WireEngine {
 public:
  PluginEngine(const std::string &interface, std::string library, WirePlace place)
      : library_(std::move(library)),
        place_(std::move(place)),
        tcp_(make_tcp_engine({{interface}, {}, {}}, {}, 1, false, "plugin")) {}
  const char *name() const override { return "plugin"; }

  // What the plugin takes for its start is over before machines meet.
  Status listen(Bytes *address) override {
    NetPlugin *plugin = nullptr;
    COLLC_RETURN_IF_FAILED(NetPlugin::load(library_, &plugin));
    COLLC_RETURN_IF_FAILED(PluginNet::open(*plugin, place_, &net_));
    log(LogLevel::kInfo, "plugin: %s, %s", plugin->where().c_str(), net_->device().c_str());
    return tcp_->listen(address);
  }

  Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) override {
    const int64_t deadline = now_ms() + static_cast<int64_t>(meeting.seconds * 1000);
    std::vector<std::unique_ptr<WireConnection>> controls;
    COLLC_RETURN_IF_FAILED(tcp_->meet(meeting, &controls));
    std::vector<std::unique_ptr<Meeting>> meetings(controls.size());
    COLLC_RETURN_IF_FAILED(after_verdict(meeting, deadline, join(meeting, deadline, net_, controls, &meetings)));
    const auto peers = std::make_shared<PluginConnection::Peers>();
    made->clear();
    made->resize(controls.size());
    for (size_t m = 0; m < controls.size(); ++m)
      if (controls[m] != nullptr)
        (*made)[m] =
            std::make_unique<PluginConnection>(net_, meetings[m]->take(), std::move(controls[m]), peers, meeting.silence);
    for (PluginConnection *const one : *peers)
      COLLC_RETURN_IF_FAILED(after_verdict(meeting, deadline, with_name(one->open(), *one)));
    return {};
  }

 private:
  static Status with_name(const Status &status, const WireConnection &connection) {
    if (status.ok()) return {};
    return fail(status.code(), "engine plugin: no connection with %s: %s", connection.name().c_str(), status.text().c_str());
  }

  static Status join(const WireMeeting &meeting, int64_t deadline, const std::shared_ptr<PluginNet> &net,
                     const std::vector<std::unique_ptr<WireConnection>> &controls,
                     std::vector<std::unique_ptr<Meeting>> *meetings) {
    std::vector<AddressSink> peers(controls.size());
    std::vector<Bytes> own(controls.size());
    for (size_t m = 0; m < controls.size(); ++m) {
      if (controls[m] == nullptr) continue;
      (*meetings)[m] = std::make_unique<Meeting>(net);
      COLLC_RETURN_IF_FAILED(with_name((*meetings)[m]->listen(&own[m]), *controls[m]));
    }
    COLLC_RETURN_IF_FAILED(exchange_addresses(meeting, deadline, "handle of a network plugin", controls, own, &peers));
    for (size_t m = 0; m < controls.size(); ++m)
      if (controls[m] != nullptr) COLLC_RETURN_IF_FAILED((*meetings)[m]->set_peer(peers[m].address(), controls[m]->name()));
    Beats beats(controls);
    for (;;) {
      const WireConnection *missing = nullptr;
      beats.tell();
      for (size_t m = 0; m < controls.size(); ++m) {
        if (controls[m] == nullptr) continue;
        Meeting &one = *(*meetings)[m];
        if (!one.complete()) COLLC_RETURN_IF_FAILED(with_name(one.advance(), *controls[m]));
        bool moved = false, ended = false;
        const Status status = controls[m]->progress(peers[m], &moved, &ended);
        if (one.complete()) continue;
        COLLC_RETURN_IF_FAILED(status);
        missing = controls[m].get();
      }
      if (missing == nullptr) return {};
      if (meeting.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
      if (now_ms() >= deadline)
        return fail(ncclSystemError, "engine plugin: %s did not connect with %s within %.0f s", net->plugin().where().c_str(),
                    missing->name().c_str(), meeting.seconds);
      poll(nullptr, 0, kWaitMs);
    }
  }

  std::string library_;
  WirePlace place_;
  std::unique_ptr<WireEngine> tcp_;
  std::shared_ptr<PluginNet> net_;
};

}  // namespace

std::unique_ptr<WireEngine> make_plugin_engine(const std::string &interface, const std::string &library,
                                               const WirePlace &place) {
  return std::make_unique<PluginEngine>(interface, library, place);
}

}  // namespace collc
