// Which of several rails between two machines brings a chunk: pure rules, without sockets or clocks of their own.
//
// A rail is one connection of a pair of machines: over one of the interfaces that COLLC_NET names, and one of its streams.
// The receiver decides. It grants every chunk of a window to a rail as soon as the chunk before it in its slot has been read,
// and the sender obeys. Rates are of what has arrived here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace collc {

constexpr uint32_t kMostRails = 16;  // four bits each
constexpr uint32_t kNoRail = UINT32_MAX;

// The rail for the next chunk of a window: the one on which the chunk arrives first, if `waiting[i]` chunks of the window come
// before it on rail i, at `rates[i]` chunks per unit of time (0: closed). So a rail gets a chunk only if it brings the chunk
// before the others have used up the window. Of equal ones the first; kNoRail if all are closed.
uint32_t choose_rail(const std::vector<double> &rates, const std::vector<uint32_t> &waiting);

// How fast a rail delivers, from the times at which messages begin and end to come; in bytes per microsecond.
class DeliveryRate {
 public:
  // `follows`: the sender had it ready before the one before it had come, so the rail was busy all the time between.
  // `at_hand`: bytes of it that had come with its head. `alone`: what came before is forgotten when it ends.
  void begin(int64_t now_us, uint32_t bytes, uint32_t at_hand, bool follows, bool alone);
  void end(int64_t now_us);
  // Nothing that has begun will end.
  void stop() { begun_us_ = ended_us_ = 0; }
  // 0 if nothing is known. A message that still comes makes it no faster than that message.
  double rate(int64_t now_us) const;
  // How long a message has been coming.
  int64_t coming_us(int64_t now_us) const { return begun_us_ == 0 ? 0 : now_us - begun_us_; }

 private:
  int64_t begun_us_ = 0, ended_us_ = 0;
  uint32_t coming_ = 0, counted_ = 0;
  bool follows_ = false, alone_ = false;
  double bytes_ = 0, time_us_ = 0;  // of the last messages, older ones with less weight
};

// Rates of all rails: measured ones, and for the others the speeds of their interfaces (0: not known), as far as those of the
// measured ones agree with their rates. Rails that are not open have 0.
std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open);

// A message on a rail, such that its sender learns whether it has arrived.
struct RailTicket {
  uint32_t rail = kNoRail;
  uint64_t generation = 0;  // of the rail's connection
  uint64_t number = 0;      // of the message on that connection, from 1
};

// The sender's side of a window: the chunks that are written and not read yet.
class OutWindow {
 public:
  explicit OutWindow(uint32_t slots) : slots_(slots) {}

  // The receiver has read all chunks before `number`, and grants the next `count` to these rails, four bits each. False if that
  // cannot be.
  bool grant(uint64_t number, uint32_t count, uint64_t rails, uint64_t passed);
  // It has lost the rail of a chunk, and waits for it on another one.
  bool grant_again(uint64_t number, uint32_t rail);
  // Chunk `number` is there and waits for its rail.
  void wait(uint64_t number);
  // Chunk `number` has gone beside the rails.
  void skip(uint64_t number);

  // The first chunk from `*number` on, and before `passed`, that waits and whose rail is known; false: none.
  bool find_waiting(uint64_t *number, uint64_t passed, uint32_t *rail) const;
  void sent(uint64_t number, const RailTicket &ticket);
  bool any_waiting() const { return waiting_ > 0; }
  uint64_t read() const { return read_; }
  // Of a chunk that has gone over a rail; no rail: it waits. Null: it went beside the rails.
  const RailTicket *ticket(uint64_t number) const;

 private:
  enum class State : uint8_t { kNone, kWaiting, kOnRail, kBeside };
  struct Slot {
    State state = State::kNone;
    uint32_t rail = kNoRail;
    RailTicket ticket;
  };
  Slot &slot(uint64_t number) { return slots_[number % slots_.size()]; }
  const Slot &slot(uint64_t number) const { return slots_[number % slots_.size()]; }

  std::vector<Slot> slots_;
  uint64_t read_ = 0, granted_ = 0;
  uint32_t waiting_ = 0;
};

// The receiver's side: what has come, in any order, and what was granted.
class InWindow {
 public:
  explicit InWindow(uint32_t slots) : slots_(slots), waiting_(kMostRails) {}

  // Grants what `read` allows, at most as much as one message tells; returns how many, and their rails, four bits each.
  uint32_t grant(uint64_t read, const std::vector<double> &rates, uint64_t *rails);
  // Chunk `number` of those that were granted to a rail and have not come gets another one; kNoRail if there is nothing to do.
  uint32_t grant_again(uint64_t number, uint32_t lost, const std::vector<double> &rates);
  uint64_t granted() const { return granted_; }

  // A message for chunk `number` begins to come, over `rail` (kNoRail: beside the rails); `read` chunks have been read. False:
  // nobody may send that.
  bool place(uint64_t number, uint64_t read, uint32_t rail);
  // It has come.
  bool arrive(uint64_t number, uint64_t read, uint32_t rail);
  bool has_arrived(uint64_t number) const { return slots_[number % slots_.size()].state == State::kArrived; }
  // Readers are shown chunk `number`; its slot waits for the next one.
  void publish(uint64_t number);

 private:
  enum class State : uint8_t { kFree, kPlaced, kArrived };
  struct Slot {
    State state = State::kFree;
    uint32_t rail = kNoRail;  // that it was granted to
    uint32_t over = kNoRail;  // that it comes over
  };
  bool may_come(uint64_t number, uint64_t read, uint32_t rail) const;
  void stop_waiting(Slot &slot);

  std::vector<Slot> slots_;
  std::vector<uint32_t> waiting_;  // chunks of the window that each rail is to bring
  uint64_t published_ = 0, granted_ = 0;
};

}  // namespace collc
