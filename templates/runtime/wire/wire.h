// The interface between the proxy thread and the engines, which carry its messages between machines (tcp, ucx).
//
// A connection joins two machines of one communicator. It carries messages, each a head and a body, completely and in order.
// The receiver says where a body goes when it has seen the head. The creating thread of a rank connects (listen, meet); after
// that only the proxy thread uses the connection, and no function of a connection blocks. An engine interprets no input
// before both ends have proved to each other that they know the communicator's secret.
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

// The head of a message; its meaning is defined in messages.h. Engines read only `bytes`, the size of the body.
struct WireHead {
  uint32_t kind;
  uint32_t object;
  uint64_t number;
  uint64_t tag;
  uint32_t bytes;
  uint32_t extra;
};
static_assert(sizeof(WireHead) == 32, "as it travels, in the order of bytes of both machines");

// Bodies of up to this many bytes may first come into memory that other messages use, too.
constexpr uint32_t kSmallWireBody = 2048;

// Maximum bytes that heads (counts of read chunks) wait behind.
constexpr uint64_t kMaxQueuedBytes = 256 << 10;

// The receiver of a connection's messages. An error that it returns breaks the connection.
class WireSink {
 public:
  virtual ~WireSink() = default;
  // Sets `body` to the memory for the body, which has at least one byte. Called in the order of messages, for several
  // messages possibly before the first of them is complete. A small body is written just before take() is called.
  virtual Status place(const WireHead &head, char **body) = 0;
  // Called when a message is complete, in the order of messages.
  virtual Status take(const WireHead &head) = 0;
};

// The rails of a connection, as the remote queues see them (remote_queues.h). Messages on one rail arrive in order. They are not
// ordered with messages on other rails, or with messages that are not sent on a rail.
class Rails {
 public:
  virtual ~Rails() = default;
  // Chooses a rail and the number of bytes that it should carry. The chunk has `bytes` bytes, and `left` bytes have no rail
  // yet. Returns kNoRail if they should wait.
  virtual RailPiece choose(uint32_t bytes, uint32_t left) = 0;
  // Sends a message on a rail. The body must not change until the message has arrived, or has been sent again after the end
  // of the rail.
  virtual RailTicket send_on(uint32_t rail, const WireHead &head, const void *body) = 0;
  // Returns one end of a rail's connection that has not been returned yet; false if there is none. Messages that had not come
  // before the end must be sent again.
  virtual bool take_end(RailEnd *end) = 0;
  virtual bool has_arrived(const RailTicket &ticket) const = 0;
};

class WireConnection {
 public:
  virtual ~WireConnection() = default;
  // Queues a message. The body is not copied and must not change until sent() has counted the message.
  virtual void send(const WireHead &head, const void *body) = 0;
  // Messages queued so far, and how many of them have left this process.
  virtual uint64_t queued() const = 0;
  virtual uint64_t sent() const = 0;
  virtual uint64_t queued_bytes() const = 0;
  // With this many queued bytes the connection is busy. Further messages should wait with the caller, because in here nothing
  // can pass the queued ones.
  virtual uint64_t busy_bytes() const { return kMaxQueuedBytes; }
  // Sends and receives what is possible without waiting; sets `moved` if anything moved. Fails if the connection is broken;
  // `ended` then says whether the peer closed it (or the peer's system, because its process ended) or the network is gone.
  virtual Status progress(WireSink &sink, bool *moved, bool *ended) = 0;
  // Returns whether the peer's system has received everything that was queued.
  virtual bool drained() = 0;
  // Declares that nothing more will be queued.
  virtual void finish() = 0;
  // Appends descriptors to poll for input, and for output if data wait for it.
  virtual void add_to(std::vector<pollfd> *polled) const = 0;
  // Returns null if the connection has no rails; all messages are then in order.
  virtual Rails *rails() { return nullptr; }
  // Returns the local network interfaces of the connection; empty if unknown.
  virtual std::vector<std::string> interfaces() const { return {}; }
  // Returns text such as "10.0.0.2 port 4711 over eth0".
  virtual const std::string &name() const = 0;
};

// How the machines of one communicator meet.
struct WireMeeting {
  std::string secret;          // known only to them
  uint32_t self = 0;           // index of this machine
  std::vector<Bytes> addresses;  // from listen() of each machine's engine
  double seconds = 0;          // limit for the meeting
  double silence = 0;          // a connection is broken after this many seconds without any sign of the peer
  std::function<bool()> stop;  // polled; true ends the meeting
};

class WireEngine {
 public:
  virtual ~WireEngine() = default;
  virtual const char *name() const = 0;
  // Starts to listen for peers. `address` is meant for them only, over a channel that nobody else can read.
  virtual Status listen(Bytes *address) = 0;
  // Connects with all other machines, and blocks. `made` has a connection per machine, null for this one. Afterwards no port
  // stays open, except those on which connections get lost rails back.
  virtual Status meet(const WireMeeting &meeting, std::vector<std::unique_ptr<WireConnection>> *made) = 0;
};

// The facts about this machine that do not come from its variables.
struct WirePlace {
  std::vector<uint64_t> gpus;  // known bus ids of the GPUs of its ranks, as in GpuPlace
  std::vector<Card> cards;     // NICs of the plan's servers that its ranks stand for
};

// Creates the engine of COLLC_NET=[engine:]interface,...; tcp if the variable names none or is not set.
Status make_engine(const WirePlace &place, std::unique_ptr<WireEngine> *made);

// The interfaces that the tcp engine uses.
struct TcpInterfaces {
  std::vector<std::string> lists;   // each list selects one rail's interface; if there is none, the rules below apply
  std::vector<std::string> named;   // the running interfaces among these names, if there are any; otherwise found interfaces
  std::vector<std::string> excluded;  // not used as further rails next to the usual interface
  std::vector<uint32_t> places = {};  // for each of `named`: the place of its NIC
};
// The engine of plain sockets, with `streams` connections over each interface, encrypted if `tls`. `above` is the name of the
// engine that uses it; all machines must have the same.
std::unique_ptr<WireEngine> make_tcp_engine(const TcpInterfaces &interfaces, const WirePlace &place, uint32_t streams, bool tls,
                                            const char *above);
// The engine of UCX with the RDMA ports `devices` ("": all), and with sockets for setup and liveness.
std::unique_ptr<WireEngine> make_ucx_engine(const std::string &interface, const std::string &devices);

// For exit(): no engine calls another library any more. Waits for a running call, until the deadline at most.
void end_engines(int64_t deadline_ms);

// Reads COLLC_NET_TIMEOUT: the seconds of silence after which a machine counts as gone.
Status silence_seconds(double *seconds);

}  // namespace collc
