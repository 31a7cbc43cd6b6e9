// Which machines meet over plain sockets, and the proofs before anything else is read.
//
// A machine connects to those before it and accepts those behind it, and both ends prove themselves (bootstrap/greeting.h). The key is
// the communicator's secret with a random word of the machine that is called, which travels over the rendezvous, where only ranks
// are. A stranger can therefore do no more than occupy one of the seats of an Acceptor for five seconds. When a caller is let in,
// it gets one byte: an attempt to connect that ends before that is no connection for either end.
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

// The request in a hello.
struct TcpHello {
  char magic[8];
  uint32_t from, to;
  uint64_t rail;  // streams of the first interface first
  uint64_t attempt;  // from 1; the acceptor takes none twice
};

// A connection whose ends have proved themselves.
struct TcpVisitor {
  Descriptor fd;
  uint64_t attempt = 0;  // 0: nobody
};

// All machines of a communicator, as this one knows them.
class TcpParty {
 public:
  // `tls`: what passes over connections is encrypted.
  Status read(const WireMeeting &meeting, bool tls);

  uint32_t self() const { return self_; }
  uint32_t nmachines() const { return static_cast<uint32_t>(addresses_.size()); }
  uint32_t nrails() const {
    return static_cast<uint32_t>(addresses_[self_].size() - (spare_ ? 1 : 0)) * addresses_[self_][0].streams;
  }
  // The rails, and behind them the spare, where there is one: the way between the usual interfaces, for two machines that no
  // rail joins.
  uint32_t nways() const { return nrails() + (spare_ ? 1 : 0); }
  bool is_spare(uint64_t rail) const { return rail == nrails(); }
  // Whether a rail keeps to its interface: there are several. The spare goes wherever the system sends it, as if there were no rails.
  bool is_bound(uint64_t rail) const { return told_ > 1 && !is_spare(rail) && address(self_, rail).wish != TcpWish::kSpare; }
  // Interfaces that this machine has told.
  size_t told() const { return told_; }
  // Of a machine's interface for a rail, or the spare.
  const TcpAddress &address(uint32_t machine, uint64_t rail) const {
    return addresses_[machine][rail / addresses_[machine][0].streams];
  }
  // Bytes per microsecond that the interfaces of both ends give a rail; 0: not known.
  double speed(uint32_t machine, uint32_t rail) const;
  // "node1 at 10.0.0.2 port 4711 (eth0)".
  std::string name_of(uint32_t machine, uint32_t rail) const;
  // With the interfaces of all rails.
  std::string name_of(uint32_t machine) const;
  // "rail eth0 to " and that; "eth0, the spare, to ".
  std::string describe_rail(uint32_t machine, uint32_t rail) const;
  // Of this machine, that are used.
  std::vector<std::string> interfaces() const;

  TcpHello hello_to(uint32_t machine, uint32_t rail, uint64_t attempt) const;
  // The key that both ends of a hello must know; empty: no machine may call with it.
  std::string key_of(const TcpHello &hello) const;
  // What messages go over from now on.
  std::unique_ptr<TcpConnection> connect(uint32_t machine, uint32_t rail, TcpVisitor made, double silence) const;

 private:
  Status check_alike() const;

  std::string secret_;
  bool tls_ = false, spare_ = false;
  uint32_t self_ = 0;
  size_t told_ = 0;
  std::vector<std::vector<TcpAddress>> addresses_;
};

// Listens on each interface of this machine, and takes those in who belong to the party.
class TcpDoors {
 public:
  using Visitor = TcpVisitor;

  // `addresses`: one for each interface, with a port from now on. Those on which nobody can listen go, unless COLLC_NET names them or
  // no other is left.
  Status open(std::vector<TcpAddress> *addresses);
  // Whom to let in, on the interfaces that they use.
  void expect(std::shared_ptr<const TcpParty> party);
  void add_to(std::vector<pollfd> *polled) const;
  void handle_events(const pollfd **at);
  // Looks, unless it has a moment ago.
  void look();
  // Whoever has come last for a rail from a machine.
  Visitor take(uint32_t machine, uint32_t rail);

 private:
  Status open_one(TcpAddress *mine, bool bound);
  std::string key_for(const unsigned char *words) const;
  void admit(Descriptor client, const unsigned char *words);

  std::shared_ptr<const TcpParty> party_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;  // per interface
  std::vector<TcpAddress> places_;  // of the acceptors
  std::vector<std::vector<Visitor>> visitors_;  // by machine and rail
  std::vector<std::vector<uint64_t>> attempts_;  // the last ones that were answered
  int64_t looked_ms_ = 0;
};

// Calls another machine for one rail, as often as needed.
class TcpCaller {
 public:
  // `attempt`: the last one of an earlier caller; 0: none.
  TcpCaller(std::shared_ptr<const TcpParty> party, uint32_t to, uint32_t rail, uint64_t attempt)
      : party_(std::move(party)), to_(to), rail_(rail), attempt_(attempt) {}

  uint32_t to() const { return to_; }
  uint32_t rail() const { return rail_; }
  uint64_t attempt() const { return attempt_; }
  // Returns true if the listener may take the attempt for a connection: the hello has been sent, and the caller is not admitted yet.
  bool waits() const { return told_; }
  bool calls() const { return static_cast<bool>(fd_); }
  // The last attempt has come to nothing because nobody listens there, or no way leads there.
  bool is_refused() const { return refused_ && !fd_; }
  // Starts the next attempt if there is none and the last one ended `pause_ms` ago.
  void prepare(int64_t pause_ms);
  void add_to(std::vector<pollfd> *polled) const;
  // Something has happened. True if `connected` is a connection now.
  bool advance(Descriptor *connected);
  // Ends the attempt, if there is one: the other end never sees a hello of it that is still under way.
  void hang_up();
  // The same, if it began `after_ms` before; `asked_ms`: when poll began, which has found nothing of it.
  void give_up(int64_t after_ms, int64_t asked_ms);
  // All of the above once, unless it has been done a moment ago; true if `made` is a connection now.
  bool call(int64_t pause_ms, int64_t after_ms, TcpVisitor *made);
  // Why an attempt failed; empty: none has.
  const std::string &last() const { return last_; }

 private:
  void tell();
  void forget();
  TcpHello hello() const { return party_->hello_to(to_, rail_, attempt_); }

  std::shared_ptr<const TcpParty> party_;
  uint32_t to_, rail_;
  Descriptor fd_;
  uint64_t attempt_;
  int64_t begun_ms_ = 0, ended_ms_ = 0, called_ms_ = 0;
  bool told_ = false;  // the hello has been sent
  bool proved_ = false;  // so has the answer to the challenge
  bool refused_ = false;
  Greeting greeting_;
  std::string last_;
};

}  // namespace collc
