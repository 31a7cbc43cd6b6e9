// The setup of connections between machines over plain sockets: addresses, listeners and connection attempts, with proofs
// before anything else is read.
//
// A machine connects to the machines before it and accepts connections from those after it, and both ends prove that they
// know the secret (bootstrap/greeting.h). The key is the communicator's secret with random bytes of the called machine, which
// it has sent over the rendezvous, where only ranks are. So a stranger can do no more than occupy one of an Acceptor's places
// for 5 s. When a caller is admitted, it receives one byte. An attempt that ends before this byte is not a connection for
// either end.
//
// The creating thread of a rank uses these objects while machines meet; after that, connections with rails use them on the
// proxy thread. No function blocks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/acceptor.h"
#include "bootstrap/greeting.h"
#include "wire/tcp_address.h"
#include "wire/tcp_connection.h"
#include "wire/wire.h"

namespace collc {

// The request in a hello (bootstrap/greeting.h).
struct TcpHello {
  char magic[8];
  uint32_t from, to;
  uint64_t rail;  // number of the rail; the streams of the first interface come first
  uint64_t attempt;  // counted from 1; the accepting machine accepts each number only once
};

// A connection whose ends have proved that they know the secret.
struct TcpSocket {
  Descriptor fd;
  uint64_t attempt = 0;  // 0: no connection
};

// All machines of a communicator, as this one knows them. Constant after read().
class TcpPeers {
 public:
  // Reads the addresses of all machines and chooses the rails. `tls`: connections are encrypted.
  Status read(const WireMeeting &meeting, bool tls);

  uint32_t self() const { return self_; }
  uint32_t nmachines() const { return static_cast<uint32_t>(addresses_.size()); }
  uint32_t nrails() const {
    return static_cast<uint32_t>(addresses_[self_].size() - (has_spare_ ? 1 : 0)) * addresses_[self_][0].streams;
  }
  // The number of rails, plus 1 if there is a spare: a connection between the usual interfaces, for two machines that no rail
  // joins. The spare has the last number.
  uint32_t nways() const { return nrails() + (has_spare_ ? 1 : 0); }
  bool is_spare(uint64_t rail) const { return rail == nrails(); }
  // Returns whether the sockets of a rail are bound to its interface, because there are several. The spare is routed by the
  // system, as if there were no rails.
  bool is_bound(uint64_t rail) const {
    return ninterfaces_ > 1 && !is_spare(rail) && address(self_, rail).source != InterfaceSource::kSpare;
  }
  // Returns the number of interfaces that this machine has sent to the others.
  size_t ninterfaces() const { return ninterfaces_; }
  // Returns the address of a machine's interface for a rail or the spare.
  const TcpAddress &address(uint32_t machine, uint64_t rail) const {
    return addresses_[machine][rail / addresses_[machine][0].streams];
  }
  // Returns the speed of a rail by the interfaces of both ends, in bytes per microsecond; 0: unknown.
  double speed(uint32_t machine, uint32_t rail) const;
  // Returns text such as "node1 at 10.0.0.2 port 4711 (eth0)".
  std::string name_of(uint32_t machine, uint32_t rail) const;
  // Returns such text with the interfaces of all rails.
  std::string name_of(uint32_t machine) const;
  // Returns text such as "rail eth0 to " with the name above; for the spare "the usual interface eth0 to ".
  std::string describe_rail(uint32_t machine, uint32_t rail) const;
  // Returns the interfaces of this machine that are used.
  std::vector<std::string> interfaces() const;

  TcpHello hello_to(uint32_t machine, uint32_t rail, uint64_t attempt) const;
  // Returns the key of a hello, which both ends must know; empty if no machine may send it.
  std::string key_of(const TcpHello &hello) const;
  // Turns an authenticated socket into a connection that carries messages.
  std::unique_ptr<TcpConnection> connect(uint32_t machine, uint32_t rail, TcpSocket socket, double silence) const;

 private:
  Status check_engines() const;

  std::string secret_;
  bool tls_ = false, has_spare_ = false;
  uint32_t self_ = 0;
  size_t ninterfaces_ = 0;
  std::vector<std::vector<TcpAddress>> addresses_;
};

// Listens on each interface of this machine, and admits callers that are machines of the communicator.
class TcpListeners {
 public:
  // Opens a listener for each address and sets its port. Removes addresses on which it cannot listen, unless COLLC_NET names
  // the interface or no other is left; then it fails.
  Status open(std::vector<TcpAddress> *addresses);
  // Admits the machines of the communicator from now on, and closes the listeners of interfaces that are not used.
  void expect(std::shared_ptr<const TcpPeers> peers);
  void add_to(std::vector<pollfd> *polled) const;
  void handle_events(const pollfd **at);
  // Polls the listeners, unless it did so within the last 20 ms.
  void poll_now();
  // Returns the last connection that has come for a rail from a machine; an empty one if none has come since the last call.
  TcpSocket take(uint32_t machine, uint32_t rail);

 private:
  Status open_one(TcpAddress *local, bool bound);
  std::string key_for(const unsigned char *words) const;
  void admit(Descriptor client, const unsigned char *words);

  std::shared_ptr<const TcpPeers> peers_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;  // by interface
  std::vector<TcpAddress> addresses_;  // of the acceptors
  std::vector<std::vector<TcpSocket>> sockets_;  // by machine and rail
  std::vector<std::vector<uint64_t>> attempts_;  // number of the last attempt that was accepted, by machine and rail
  int64_t last_poll_ms_ = 0;
};

// Connects to another machine for one rail, with as many attempts as needed.
class TcpConnector {
 public:
  // `attempt`: the number of the last attempt of an earlier caller; 0: none.
  TcpConnector(std::shared_ptr<const TcpPeers> peers, uint32_t to, uint32_t rail, uint64_t attempt)
      : peers_(std::move(peers)), to_(to), rail_(rail), attempt_(attempt) {}

  uint32_t to() const { return to_; }
  uint32_t rail() const { return rail_; }
  uint64_t attempt() const { return attempt_; }
  // Returns whether the listener may accept the attempt now: the hello has been sent, and the caller has not been admitted.
  bool is_waiting() const { return hello_sent_; }
  bool is_connecting() const { return static_cast<bool>(fd_); }
  // Returns whether the last attempt failed because nobody listens there or there is no route.
  bool is_refused() const { return is_refused_ && !fd_; }
  // Starts the next attempt if none is running and the last one ended `pause_ms` ago.
  void prepare(int64_t pause_ms);
  void add_to(std::vector<pollfd> *polled) const;
  // Handles an event of the socket. Returns true, and sets `connected`, when the connection is made.
  bool advance(Descriptor *connected);
  // Ends a running attempt. A hello that is still under way then never reaches the other end.
  void hang_up();
  // Ends a running attempt that is `after_ms` old. `asked_ms` is the start of the poll that has found no event of it.
  void give_up(int64_t after_ms, int64_t asked_ms);
  // Does all of the above once, unless it did so within the last 20 ms. Returns true, and sets `socket`, when the connection is
  // made.
  bool call(int64_t pause_ms, int64_t after_ms, TcpSocket *socket);
  // Returns why the last attempt failed; empty if none has.
  const std::string &last_error() const { return last_error_; }

 private:
  void send_hello();
  void close();
  TcpHello hello() const { return peers_->hello_to(to_, rail_, attempt_); }

  std::shared_ptr<const TcpPeers> peers_;
  uint32_t to_, rail_;
  Descriptor fd_;
  uint64_t attempt_;
  int64_t start_ms_ = 0, end_ms_ = 0, last_call_ms_ = 0;
  bool hello_sent_ = false;  // the hello has been sent
  bool is_answer_sent_ = false;  // the answer to the challenge has been sent
  bool is_refused_ = false;
  Greeting greeting_;
  std::string last_error_;
};

}  // namespace collc
