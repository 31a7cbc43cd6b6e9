// Where the ranks of new communicators meet: one thread of a process, for all ids that it has made.
//
// It starts with the first id and ends when none is left. Ranks of this machine come by a local socket, those of other servers
// by TCP where the target may need them. An id costs nothing until a rank shows its secret.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "bootstrap/connection.h"
#include "bootstrap/door.h"
#include "bootstrap/meeting.h"

namespace collc {

class Listener {
 public:
  // That of this process; a forked child has one of its own. Never destroyed.
  static Listener &of_process();

  // Completes an id, whose secret is there, and listens for its ranks. `everywhere`: also for those on other servers.
  Status add(Id *id, double seconds, bool everywhere);

 private:
  struct Entry {
    unsigned char secret[kSecretBytes];
    double seconds;
  };
  // Told their last word, until they have read it.
  struct Leaving {
    Connection connection;
    int64_t since;
  };

  Status start(bool everywhere);
  Status open_public_door();
  void run();
  void serve_once(std::unique_lock<std::mutex> &lock);
  int timeout() const;
  void greet(Door &door, Descriptor guest, const unsigned char *words);
  void attend_leaving(const pollfd **at);
  void collect(Meeting &meeting);
  void wait_for_late_ranks();
  static void abandon();

  std::mutex mutex_;  // guards everything below; the thread gives it away only where it polls
  std::condition_variable told_;
  bool running_ = false;
  Id place_ = {};  // where it listens: what all ids have in common
  std::unique_ptr<Door> local_, public_;
  uint32_t numbers_ = 0;
  std::map<uint32_t, Entry> ids_;          // that may be used yet
  std::map<uint32_t, Meeting> meetings_;  // of ids that are used
  std::vector<Leaving> leaving_;
  int64_t idle_ms_ = 0;  // since when there are none of these
  Listener *abandoned_ = nullptr;  // those of the processes that this one was forked from
};

}  // namespace collc
