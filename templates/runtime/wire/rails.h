// How chunks go over several rails between two machines: pure rules, without sockets or clocks of their own.
//
// A rail is one connection of a pair of machines: over one of their interfaces, and one of its streams. The sender cuts each chunk
// into pieces and gives every piece, as late as it can, to the rail on which it arrives first: by what is on its way there
// and by the rate at which the receiver says that the rail delivers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace collc {

constexpr uint32_t kMostRails = 16;
constexpr uint32_t kNoRail = UINT32_MAX;

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

// What is on its way over a rail, as its sender knows it.
class RailLoad {
 public:
  void send(uint32_t bytes, int64_t now_us);
  // So many messages of the connection have arrived; the receiver measures `rate` (0: nothing yet).
  void arrive(uint64_t messages, double rate, int64_t now_us);
  // The connection has ended.
  void reset();

  uint64_t sent() const { return sent_; }  // messages
  uint64_t arrived() const { return arrived_; }
  uint64_t bytes() const { return bytes_; }
  // As told, and no faster than what is overdue shows; 0 if nothing is known.
  double rate(int64_t now_us) const;
  // Whether it is better to keep what comes next for whichever rail becomes free, if this one brings `rate`.
  bool is_full(double rate) const;
  // Whether the rail is busy until the next message reaches it, although news of arrivals takes its time.
  bool is_busy() const;

 private:
  struct Message {
    uint64_t ahead;  // bytes, with its own, that were to arrive when it was sent
    uint32_t bytes;
    int64_t sent_us;
  };
  std::deque<Message> on_way_;
  uint64_t sent_ = 0, arrived_ = 0, bytes_ = 0;
  double told_ = 0;
  int64_t least_us_ = 0;  // between sending and hearing of the arrival; 0: not known
};

// Rates of all rails: measured ones, and for the others the speeds of their interfaces (0: not known), as far as those of the
// measured ones agree with their rates. Rails that are not open have 0.
std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open);

// A rail for what comes next of a chunk, and how much.
struct RailPiece {
  uint32_t rail = kNoRail;
  uint32_t bytes = 0;
};
struct RailState {
  double rate = 0;  // 0: closed
  uint64_t on_way = 0;  // bytes
  bool full = false;
};
// Of a chunk of `bytes`, `left` have no rail yet. A piece is what its rail brings while the others bring the rest, and arrives
// before it would on any other. No rail: the one that would bring it first is full, so it waits.
RailPiece choose_piece(const std::vector<RailState> &rails, uint32_t bytes, uint32_t left);

// A message on a rail, such that its sender learns whether it has arrived.
struct RailTicket {
  uint32_t rail = kNoRail;
  uint64_t generation = 0;  // of the rail's connection
  uint64_t number = 0;  // of the message on that connection, from 1
};

// A connection of a rail that has ended, and how many of its messages had come by then. No more will.
struct RailEnd {
  uint32_t rail = kNoRail;
  uint64_t generation = 0, came = 0;
};

// Bytes of a chunk.
struct ChunkRange {
  uint32_t begin = 0, end = 0;
};

// The sender's side of a window: the chunks that are written and not read yet.
class OutWindow {
 public:
  explicit OutWindow(uint32_t slots) : slots_(slots) {}

  // All chunks before `number` have been read. False if that cannot be.
  bool read(uint64_t number, uint64_t passed);
  uint64_t read() const { return read_; }
  // Chunk `number` is there and waits for rails.
  void wait(uint64_t number, uint32_t bytes);
  // It has gone beside the rails.
  void skip(uint64_t number) { slot(number).pieces.clear(); }

  bool any_waiting() const { return waiting_ > 0; }
  // The first bytes without a rail, of the first chunk before `passed` that has any.
  bool find_waiting(uint64_t passed, uint64_t *number, ChunkRange *range) const;
  // The first `bytes` of them have gone.
  void sent(uint64_t number, uint32_t bytes, const RailTicket &ticket);
  // What did not come before this end waits again.
  void lose(const RailEnd &end, uint64_t passed);
  // Whether all has gone that waited, and each ticket `arrived`.
  template <typename Arrived>
  bool has_arrived(uint64_t passed, const Arrived &arrived) const {
    for (uint64_t number = read_; number < passed; ++number) {
      const Slot &slot = this->slot(number);
      if (!slot.waiting.empty()) return false;
      for (const Piece &piece : slot.pieces)
        if (!arrived(piece.ticket)) return false;
    }
    return true;
  }

 private:
  struct Piece {
    ChunkRange range;
    RailTicket ticket;
  };
  struct Slot {
    std::vector<ChunkRange> waiting;
    std::vector<Piece> pieces;  // that have gone
  };
  Slot &slot(uint64_t number) { return slots_[number % slots_.size()]; }
  const Slot &slot(uint64_t number) const { return slots_[number % slots_.size()]; }

  std::vector<Slot> slots_;
  uint64_t read_ = 0;
  uint32_t waiting_ = 0;  // chunks of which bytes wait
};

// The receiver's side: what has come, in any order.
class InWindow {
 public:
  explicit InWindow(uint32_t slots) : slots_(slots) {}

  // Whether a message for chunk `number` may come when `read` chunks have been read.
  bool may_come(uint64_t number, uint64_t read) const;
  // Bytes of it have come, the `last` ones or others before them. False: nobody may send that.
  bool arrive(uint64_t number, uint64_t read, ChunkRange range, bool last);
  bool has_arrived(uint64_t number) const;
  // Readers are shown chunk `number`; its slot waits for the next one.
  void publish(uint64_t number);

 private:
  struct Slot {
    std::vector<ChunkRange> came;
    uint64_t missing = UINT64_MAX;  // bytes; as many as can be, less what has come, until the last ones have
    uint32_t bytes = UINT32_MAX;  // of the chunk, when the last ones have come
  };

  std::vector<Slot> slots_;
  uint64_t published_ = 0;
};

}  // namespace collc
