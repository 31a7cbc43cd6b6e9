// The rendezvous server for new communicators: one thread per process, for all ids that the process has made.
//
// The thread starts with the first id and ends one second after the last id was used up. Ranks on this machine connect to a
// local socket, ranks on other servers by TCP if the target supports them. Until a rank presents the secret of an id, the id
// only takes a map entry.
//
// Threads that call ncclGetUniqueId() call add(). They share mutex_ with the listener's thread, which unlocks it only in
// poll().
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "bootstrap/connection.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/rendezvous_session.h"

namespace collc {

class Listener {
 public:
  // Returns the listener of this process; a forked child gets a new one. Never destroyed.
  static Listener &of_process();

  // Fills in all of an id but its secret, which it already has, and its magic. Listens for the ranks of the id; if
  // `everywhere`, also for ranks on other servers. `seconds` limits each wait for ranks.
  Status add(Id *id, double seconds, bool everywhere);

 private:
  struct Entry {
    unsigned char secret[kSecretBytes];
    double seconds;
  };
  // A connection to a rank, kept open until the rank has read the last message and closes it.
  struct Leaving {
    Connection connection;
    int64_t since;
  };

  Status start(bool everywhere);
  Status open_public_acceptor();
  void run();
  void serve_once(std::unique_lock<std::mutex> &lock);
  int timeout() const;
  // Returns the decisions of this object for an acceptor.
  Acceptor::Owner owner_of(Acceptor &acceptor);
  void admit(Acceptor &acceptor, Descriptor client, const unsigned char *words);
  void handle_leaving(const pollfd **at);
  void collect(RendezvousSession &session);
  void wait_for_late_ranks();
  static void abandon();

  std::mutex mutex_;  // guards all members below; the thread unlocks it only while it polls
  std::condition_variable told_;
  bool running_ = false;
  Id place_ = {};  // where the listener can be reached; equal in all ids
  std::unique_ptr<Acceptor> local_, public_;
  uint32_t numbers_ = 0;
  std::map<uint32_t, Entry> ids_;          // the ids that may still be used
  std::map<uint32_t, RendezvousSession> sessions_;  // of ids that at least one rank has used
  std::vector<Leaving> leaving_;
  int64_t idle_ms_ = 0;  // since when ids_, sessions_ and leaving_ are all empty, in ms of now_ms()
  // next in the list of listeners that were inherited from a parent process or lost their socket; keeps them reachable
  Listener *abandoned_ = nullptr;
};

}  // namespace collc
