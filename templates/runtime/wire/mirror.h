// The state of ranks on another machine, as local ranks see it. The segment has a line for every rank of a communicator. A
// local rank writes its line itself; for a remote rank, the proxy thread here writes newest call, log, mail, and whether the
// rank has left or died, from the messages of the proxy thread there. So the same code detects aborts, different calls and
// dead ranks, and makes splits, on one and on several machines.
//
// Only the proxy thread uses the object; no function blocks.
#pragma once
#include <deque>
#include <vector>

#include "plan/call.h"
#include "wire/lanes.h"

namespace collc {

class Mirror {
 public:
  // `machine`: the other machine. `one_memory`: it is a rank of this server, which uses the same segment.
  Mirror(Segment &segment, const Placement &placement, uint32_t machine, bool one_memory);

  // Queues the changes of local ranks since the last call. The end of a rank is sent only when `lanes` have nothing of it
  // left.
  bool tell(WireConnection &connection, const Lanes &lanes);
  // Returns whether all local ranks have gone and the peer has been told.
  bool all_told() const;
  // Returns whether all ranks of the other machine have gone, as far as is known here.
  bool all_gone() const;
  // Marks the remote ranks of one process, or all if `process` is 0, as dead, except those that have left.
  void bury(const std::vector<uint64_t> &processes, uint64_t process);

  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);
  // Drops copies of messages that have been sent.
  void forget(uint64_t sent);

 private:
  struct Told {
    uint32_t rank;
    uint64_t newest = 0, finished = 0, mail = 0;
    bool finalized = false;
    int64_t calls_us = 0;
    bool gone = false;
  };
  struct Kept {
    uint64_t message;  // sequence number; once this many messages have been sent, the body is dropped
    Bytes body;
  };

  bool tell_calls(WireConnection &connection, Told &told, bool now);
  bool tell_mail(WireConnection &connection, Told &told);
  bool tell_abort(WireConnection &connection);
  bool tell_end(WireConnection &connection, const Lanes &lanes, Told &told);
  void send(WireConnection &connection, WireHead head, Bytes body);
  bool has_gone(uint32_t rank) const { return segment_.has_left(rank) || !segment_.alive(rank); }
  bool is_theirs(uint32_t rank) const { return rank < placement_.machine.size() && placement_.machine[rank] == machine_; }
  void take_calls(const WireHead &head);
  void take_mail(const WireHead &head);
  void bury(uint32_t rank);

  Segment &segment_;
  const Placement &placement_;
  uint32_t machine_;
  std::vector<Told> ours_;
  bool one_memory_;
  bool told_abort_ = false;
  std::deque<Kept> kept_;
  Bytes incoming_;
};

}  // namespace collc
