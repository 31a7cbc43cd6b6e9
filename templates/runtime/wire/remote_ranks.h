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
#include "wire/remote_queues.h"

namespace collc {

class RemoteRanks {
 public:
  // `machine`: the other machine. `one_memory`: it is a rank of this server, which uses the same segment.
  RemoteRanks(Segment &segment, const Placement &placement, uint32_t machine, bool one_memory);

  // Queues the changes of local ranks since the last call. The end of a rank is sent only when `queues` have nothing of it
  // left.
  bool send_changes(WireConnection &connection, const RemoteQueues &queues);
  // Returns whether all local ranks have gone and the peer has been told.
  bool all_ends_sent() const;
  // Returns whether all ranks of the other machine have gone, as far as is known here.
  bool all_remote_gone() const;
  // Marks the remote ranks of one process, or all if `process` is 0, as dead, except those that have left.
  void mark_dead(const std::vector<uint64_t> &processes, uint64_t process);

  Status place(const WireHead &head, char **body);
  Status take(const WireHead &head);
  // Drops copies of messages that have been sent.
  void drop_sent(uint64_t sent);

 private:
  struct SentState {
    uint32_t rank;
    uint64_t newest = 0, finished = 0, mail = 0;
    bool finalized = false;
    int64_t calls_us = 0;
    bool end_sent = false;
  };
  struct QueuedBody {
    uint64_t message;  // sequence number; once this many messages have been sent, the body is dropped
    Bytes body;
  };

  bool send_calls(WireConnection &connection, SentState &state, bool now);
  bool send_mail(WireConnection &connection, SentState &state);
  bool send_abort(WireConnection &connection);
  bool send_end(WireConnection &connection, const RemoteQueues &queues, SentState &state);
  void send(WireConnection &connection, WireHead head, Bytes body);
  bool has_gone(uint32_t rank) const { return segment_.has_left(rank) || !segment_.alive(rank); }
  bool is_remote(uint32_t rank) const { return rank < placement_.machine.size() && placement_.machine[rank] == machine_; }
  void take_calls(const WireHead &head);
  void take_mail(const WireHead &head);
  void mark_dead(uint32_t rank);

  Segment &segment_;
  const Placement &placement_;
  uint32_t machine_;
  std::vector<SentState> local_ranks_;
  bool one_memory_;
  bool abort_sent_ = false;
  std::deque<QueuedBody> queued_bodies_;
  Bytes incoming_;
};

}  // namespace collc
