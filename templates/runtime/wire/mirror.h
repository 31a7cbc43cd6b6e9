// What ranks here know of those on another machine: the courier writes it where ranks of one machine write it themselves.
//
// The control memory has a line for every rank of a communicator, those elsewhere included. Of a rank elsewhere, the courier
// here keeps newest call, log, mail, and whether it has left or died, from what the courier there tells. So aborts, calls that
// differ, splits and the death of a rank are found by the same code everywhere.
#pragma once
#include <deque>
#include <vector>

#include "plan/call.h"
#include "wire/lanes.h"

namespace collc {

class Mirror {
 public:
  // `machine`: the other one. `one_memory`: it is a rank of this server, which sees the same control memory.
  Mirror(Segment &segment, const Placement &placement, uint32_t machine, bool one_memory);

  // Queues what ranks here have done since the last time. That one has gone is told when `lanes` have nothing left of it.
  bool tell(WireConnection &connection, const Lanes &lanes);
  // True when all ranks here have gone, and the peer has been told.
  bool all_told() const;
  // True when all ranks there have gone, as far as is known here.
  bool all_gone() const;
  // Of the other machine's ranks, those of one process, all of them if `process` is 0, are dead now unless they have left.
  void bury(const std::vector<uint64_t> &processes, uint64_t process);

  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);
  // Drops copies of what has been sent.
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
    uint64_t message;  // until that many have been sent
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
