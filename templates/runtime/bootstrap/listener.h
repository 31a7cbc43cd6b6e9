// The rendezvous server for new communicators: one thread per process, for all ids that the process has made.
//
// It starts with the first id and ends when none is left. Ranks on this machine connect to a local socket, ranks on other
// servers by TCP if the target supports them. An id costs nothing until a rank presents its secret.
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
  // The listener of this process; a forked child has its own. Never destroyed.
  static Listener &of_process();

  // Completes an id that has its secret already, and listens for its ranks; with `everywhere`, also on other servers.
  Status add(Id *id, double seconds, bool everywhere);

 private:
  struct Entry {
    unsigned char secret[kSecretBytes];
    double seconds;
  };
  // Open until the peer has read the last message.
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

  std::mutex mutex_;  // guards everything below; the thread unlocks it only while it polls
  std::condition_variable told_;
  bool running_ = false;
  Id place_ = {};  // where it listens; the same in all ids
  std::unique_ptr<Acceptor> local_, public_;
  uint32_t numbers_ = 0;
  std::map<uint32_t, Entry> ids_;          // still valid
  std::map<uint32_t, RendezvousSession> sessions_;  // of ids that at least one rank has used
  std::vector<Leaving> leaving_;
  int64_t idle_ms_ = 0;  // since when all of these are empty
  Listener *abandoned_ = nullptr;  // listeners inherited from parent processes
};

}  // namespace collc
