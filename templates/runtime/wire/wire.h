// The seam between the courier and what carries its messages between machines: engines of one shape.
//
// A connection joins two machines of one communicator. It carries messages, a head and a body, whole and in order, each to
// where the receiver says when it has seen the head. It belongs to one thread. An engine may be used only after both ends have
// proved to each other that they know the secret of the communicator; before that nothing that comes in is interpreted.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "collc/tables.h"
#include "wire/rails.h"

struct pollfd;

namespace collc {

// What a message is about; the courier's business. Engines read `bytes`, of the body, alone.
struct WireHead {
  uint32_t kind;
  uint32_t object;
  uint64_t number;
  uint64_t tag;
  uint32_t bytes;
  uint32_t extra;
};
static_assert(sizeof(WireHead) == 32, "as it travels, in the order of bytes of both machines");

// Bodies up to this size may come into room that other messages use too.
constexpr uint32_t kSmallWireBody = 2048;

// Counts of read chunks wait behind no more than this.
constexpr uint64_t kMostQueued = 256 << 10;

// Who takes the messages of a connection. An error breaks the connection.
class WireSink {
 public:
  virtual ~WireSink() = default;
  // Where the body of a message goes: room for its bytes, which are more than none. Asked in the order of messages; several may
  // have a place before the first of them is complete. A small body is written just before its take().
  virtual Status place(const WireHead &head, char **body) = 0;
  // The message is complete; in the order of messages.
  virtual Status take(const WireHead &head) = 0;
};

// What the lanes see of a connection that has rails. A message on a rail is beside all others, and comes when it comes; those of
// one rail come in order.
class Rails {
 public:
  virtual ~Rails() = default;
  // What goes next of a chunk of `bytes` of which `left` wait, and on which rail; no rail: later.
  virtual RailPiece choose(uint32_t bytes, uint32_t left) = 0;
  // The body stays as it is until the message has arrived, or was sent again.
  virtual RailTicket send_on(uint32_t rail, const WireHead &head, const void *body) = 0;
  // To be asked until all are told: what has not come before an end has to be sent again.
  virtual bool take_end(RailEnd *end) = 0;
  virtual bool has_arrived(const RailTicket &ticket) const = 0;
};

class WireConnection {
 public:
  virtual ~WireConnection() = default;
  // Queues a message. The body is not copied: it stays as it is until sent() has passed it.
  virtual void send(const WireHead &head, const void *body) = 0;
  // Messages that were queued so far, and how many of them have left this process.
  virtual uint64_t queued() const = 0;
  virtual uint64_t sent() const = 0;
  virtual uint64_t queued_bytes() const = 0;
  // So many of these keep it busy; what is queued beyond them waits here, where nothing passes it either.
  virtual uint64_t enough() const { return kMostQueued; }
  // Moves what can be moved both ways without waiting; `moved` is set if anything did. Fails when the connection is broken;
  // `ended` tells an end that the peer made, or its system when its process ended, from a network that is gone.
  virtual Status progress(WireSink &sink, bool *moved, bool *ended) = 0;
  // True if the peer's system has all that was queued.
  virtual bool drained() = 0;
  // No more will be queued.
  virtual void finish() = 0;
  // What to poll for input and, if something waits for that, for output.
  virtual void add_to(std::vector<pollfd> *polled) const = 0;
  // Null: there are none, and all goes in order.
  virtual Rails *rails() { return nullptr; }
  // Of this machine, that it goes over; none: that is not known.
  virtual std::vector<std::string> interfaces() const { return {}; }
  // Such as "10.0.0.2 port 4711 over eth0".
  virtual const std::string &name() const = 0;
};

// How the machines of one communicator meet.
struct WireMeeting {
  std::string secret;          // that only they know
  uint32_t self = 0;           // this machine
  std::vector<Bytes> addresses;  // of all machines' engines, as their listen() told
  double seconds = 0;          // that it may take
  double silence = 0;          // seconds without any sign of a peer after which its connection is broken
  std::function<bool()> stop;  // polled
};

class WireEngine {
 public:
  virtual ~WireEngine() = default;
  virtual const char *name() const = 0;
  // Begins to listen for peers; `address` is for them, over a channel that no other can read.
  virtual Status listen(Bytes *address) = 0;
  // Connects with all others, in the order of machines, null for this one. Nothing listens afterwards.
  virtual Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) = 0;
};

// What is known of this machine beside its variables.
struct WirePlace {
  std::vector<uint64_t> gpus;  // bus ids of its ranks' GPUs, as GpuPlace has them; those that are known
  std::vector<Card> cards;     // of the plan's servers that its ranks play
};

// The engine that COLLC_NET=[engine:]interface,... names; without one, or without the variable, tcp.
Status make_engine(const WirePlace &place, std::unique_ptr<WireEngine> *made);

// Which interfaces plain sockets use.
struct TcpInterfaces {
  std::vector<std::string> lists;   // a rail on an interface of each; none: those below
  std::vector<std::string> named;   // those of these that run, else those that are found
  std::vector<std::string> barred;  // that are not found beside the usual one
  std::vector<uint32_t> places = {};  // of the named ones: the number of each as a card
};
// Plain sockets; over each interface so many streams, encrypted with `tls`. `above`: the engine that uses them; all machines must
// name the same.
std::unique_ptr<WireEngine> make_tcp_engine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls,
                                            const char *above);
// UCX, with the RDMA ports of `devices` ("": all), and sockets beside it.
std::unique_ptr<WireEngine> make_ucx_engine(const std::string &interface, const std::string &devices);

// The process exits: no engine calls a library of others any more. Waits until then at most for a call that is under way.
void end_engines(int64_t deadline_ms);

// Seconds of silence after which a machine counts as gone (COLLC_NET_TIMEOUT).
Status silence_seconds(double *seconds);

}  // namespace collc
