// The connections of the engine `plugin`: messages over four comms of a network plugin made for NCCL, their end by a TCP
// connection beside them.
//
// A message is one of the plugin's with the head, which carries a small body too, and a second one with a larger body, on another
// comm: comms keep their messages in order, and a receiver knows where a body goes when it has the head. The TCP connection, over which the
// machines have proved themselves and exchanged handles, carries signs of life and how far each end is; when the process of the
// peer ends, its system ends that connection.
//
// A plugin cannot take back what is posted, and some break all their connections where one is closed with something posted. So
// each end goes with as many empty messages as the other has posted receives for, and until all requests of both have ended both go
// on. Then each closes what it receives with, and what it sends with once the other end has told that it has done so, since some
// plugins wait there for that. Where the peer has died, memory that the plugin may still write is kept as long as the process lives,
// with the communicator's if bodies were on their way.
//
// A body in memory of a GPU is a message of its own whatever its size, since this process touches nothing there, and counts as
// come when the plugin has flushed it.
#pragma once
#include <deque>
#include <vector>

#include "wire/control.h"
#include "wire/plugin_comm.h"

namespace collc {

// The comms of both directions.
struct PluginComms {
  std::unique_ptr<PluginComm> heads_out, bodies_out, heads_in, bodies_in;
};

class PluginConnection final : public WireConnection {
 public:
  // The connections of a communicator that are there, for the thread to which all of them belong.
  using Peers = std::vector<PluginConnection *>;

  // `control`: with the peer, both ends authenticated.
  PluginConnection(std::shared_ptr<PluginNet> net, PluginComms comms, std::unique_ptr<WireConnection> control,
                   std::shared_ptr<Peers> peers, double silence);
  ~PluginConnection() override;
  PluginConnection(const PluginConnection &) = delete;
  PluginConnection &operator=(const PluginConnection &) = delete;

  // Registers the room for heads. Nothing is posted before the first progress().
  Status open();

  Status use_memory(const WireMemory &memory) override;
  void forget_memory(const WireMemory &memory) override;
  void keep_bodies_apart() override { apart_ = true; }
  void send(const WireHead &head, const void *body) override;
  uint64_t queued() const override { return sent_ + parts_.size(); }
  uint64_t sent() const override { return sent_; }
  uint64_t queued_bytes() const override { return queued_bytes_; }
  uint64_t enough() const override { return enough_; }
  Status progress(WireSink &sink, bool *moved, bool *ended) override;
  bool drained() override { return is_over() && peer_over_; }
  void finish() override;
  bool closes_together() const override { return true; }
  void add_to(std::vector<pollfd> *polled) const override {
    if (control_status_.ok()) control_->add_to(polled);
  }
  const std::string &name() const override { return control_->name(); }

 private:
  static constexpr uint64_t kWindow = 16;  // messages that the plugin has at a time, each way; ends after the last one

  // How a head travels.
  struct Words {
    enum Kind : uint32_t { kMore, kLast, kNothing };  // a message; one that ends follow; one of these
    WireHead head;
    Kind kind;
    uint32_t apart;  // not 0: the body is a message of its own
    char body[kSmallWireBody];
  };
  static constexpr size_t kHeadBytes = offsetof(Words, body);

  struct Part {
    WireHead head;
    const char *body;
    void *requests[2];  // of head and body
    bool apart;
  };
  struct Place {
    void *head_request = nullptr, *body_request = nullptr, *flush_request = nullptr;
    char *body = nullptr;
  };
  class Notes;

  static bool is_large(const WireHead &head) { return head.bytes > kSmallWireBody; }
  Status advance(WireSink &sink, bool *moved);
  Status post_parts();
  Status complete_parts();
  Status post_places();
  Status see_heads(WireSink &sink);
  Status post_bodies();
  Status take_body(Place &place, const WireHead &head, bool *is_there);
  Status take_messages(WireSink &sink, bool *moved);
  void advance_control();
  void show_life() const;
  Status enroll(PluginComm &comm, char *memory, uint64_t bytes, const std::shared_ptr<const void> &owner,
                bool on_gpu = false) const;
  // No request of this end is open, and none will be.
  bool is_over() const { return finishing() && parts_.empty() && taken_ == total_; }
  bool part();
  static Words &words_in(const OwnPages &room, uint64_t number) {
    return reinterpret_cast<Words *>(room.begin())[number % kWindow];
  }
  std::shared_ptr<void> use_gpu() const { return gpu_ ? gpu_() : nullptr; }
  bool finishing() const { return last_ != UINT64_MAX; }

  std::shared_ptr<PluginNet> net_;
  PluginComms comms_;
  std::unique_ptr<WireConnection> control_;
  std::shared_ptr<Peers> peers_;
  GpuUse gpu_;  // that bodies lie on; null: there are none on any
  double silence_;
  uint64_t enough_;
  std::shared_ptr<OwnPages> heads_out_, heads_in_;
  std::deque<Part> parts_;
  uint64_t sent_ = 0, queued_bytes_ = 0;
  // To the peer, messages whose head was posted, has ended, and so on; one without a body of its own counts.
  uint64_t heads_posted_ = 0, bodies_posted_ = 0, heads_done_ = 0, bodies_done_ = 0;
  std::vector<Place> places_;
  // From it, messages whose head has a place, was seen, whose body is awaited, that are complete.
  uint64_t placed_ = 0, seen_ = 0, awaited_ = 0, taken_ = 0;
  uint64_t last_ = UINT64_MAX,
           total_ = UINT64_MAX;  // to the peer, messages before the ends; from it, with the ends; once known
  bool apart_ = false;  // bodies in known memory are messages of their own, however small
  bool told_over_ = false, peer_over_ = false, peer_closed_ = false;
  bool joined_ = false;  // with all machines
  int64_t heard_ms_ = 0;  // over the plugin; 0: nothing, and the peer has not told that it has joined all machines
  int64_t came_ms_ = 0, controlled_ms_ = 0, control_ended_ms_ = 0, beat_ms_ = 0;
  Status control_status_;
  bool control_ended_ = false;
  Status failure_;  // of the plugin
  int64_t failed_ms_ = 0;
};

}  // namespace collc
