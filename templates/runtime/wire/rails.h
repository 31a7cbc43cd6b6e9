// Rules for sending chunks over several rails between two machines. Pure rules, without sockets or clocks; they belong to the
// proxy thread.
//
// A rail is one of the connections between two machines: over one of their interfaces, one of the streams there. The sender
// cuts each chunk into pieces. It gives a piece, as late as possible, to the rail on which the piece will arrive first, by
// the bytes that are on their way there and the rate of delivery that the receiver has measured.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace collc {

constexpr uint32_t kMaxRails = 16;
constexpr uint32_t kNoRail = UINT32_MAX;

// The rate at which a rail delivers, in bytes per microsecond, from the times when messages start and finish arriving.
class DeliveryRate {
 public:
  // A message starts to arrive. `follows`: the sender had it ready before the previous message had arrived, so the rail was
  // busy in between. `at_hand`: bytes of it that arrived with its head. `resets`: forget earlier measurements when it
  // finishes.
  void begin(int64_t now_us, uint32_t bytes, uint32_t at_hand, bool follows, bool resets);
  void end(int64_t now_us);  // the message has arrived
  // Forgets the message that was arriving; it will not finish.
  void stop() { begun_us_ = ended_us_ = 0; }
  // Returns the rate; 0 if unknown. A message that has been arriving for long lowers it.
  double rate(int64_t now_us) const;
  // Returns for how long a message has been arriving; 0 if none is.
  int64_t coming_us(int64_t now_us) const { return begun_us_ == 0 ? 0 : now_us - begun_us_; }

 private:
  int64_t begun_us_ = 0, ended_us_ = 0;
  uint32_t arriving_bytes_ = 0, counted_bytes_ = 0;
  bool follows_ = false, resets_ = false;
  double bytes_ = 0, time_us_ = 0;  // sums over the last messages; older messages have less weight
};

// The bytes on their way over a rail, as the sender knows them.
class RailLoad {
 public:
  void send(uint32_t bytes, int64_t now_us);
  // The receiver has reported that `messages` messages of the connection have arrived, and the rate that it measures (0:
  // unknown).
  void record_arrivals(uint64_t messages, double rate, int64_t now_us);
  // The connection has ended.
  void reset();

  uint64_t sent() const { return sent_; }  // messages
  uint64_t arrived() const { return arrived_; }
  uint64_t bytes() const { return bytes_; }
  // Returns the rate that the receiver has reported, or less if a message is overdue; 0 if unknown.
  double rate(int64_t now_us) const;
  // Returns whether the rail has enough to do: at this rate, further pieces should rather wait for whichever rail becomes
  // free.
  bool is_full(double rate) const;
  // Returns whether the rail will be busy until the next message reaches it, considering that reports of arrivals are late.
  bool is_busy() const;

 private:
  struct Message {
    uint64_t ahead;  // bytes that had to arrive at the time of sending, the message included
    uint32_t bytes;
    int64_t sent_us;
  };
  std::deque<Message> on_way_;
  uint64_t sent_ = 0, arrived_ = 0, bytes_ = 0;
  double reported_rate_ = 0;
  int64_t min_latency_us_ = 0;  // shortest time from sending a message to the report of its arrival; 0: unknown
};

// Returns the rates of all rails: measured rates, or, where there is none, the speed of the interface (0: unknown), scaled by
// the ratio of rate to speed on the measured rails. The rate of a rail that is not open is 0.
std::vector<double> compare_rates(const std::vector<double> &measured, const std::vector<double> &speeds,
                                  const std::vector<bool> &open);

// A rail for the next bytes of a chunk, and their number.
struct RailPiece {
  uint32_t rail = kNoRail;
  uint32_t bytes = 0;
};
struct RailState {
  double rate = 0;  // 0: closed
  uint64_t on_way = 0;  // bytes
  bool full = false;
};
// Chooses a rail and a piece. The chunk has `bytes` bytes, and `left` bytes have no rail yet. A piece is the rail's share of
// the chunk by rate; the rail is the one that delivers its piece first. Returns no rail if that rail is full; the piece then
// waits.
RailPiece choose_piece(const std::vector<RailState> &rails, uint32_t bytes, uint32_t left);

// Identifies a message on a rail, so that the sender learns whether it has arrived.
struct RailTicket {
  uint32_t rail = kNoRail;
  uint64_t generation = 0;  // of the rail's connection
  uint64_t number = 0;  // number of the message on that connection, counted from 1
};

// The end of a rail's connection, and the number of its messages that had arrived by then. No others will.
struct RailEnd {
  uint32_t rail = kNoRail;
  uint64_t generation = 0, arrived = 0;
};

// A range of bytes in a chunk.
struct ChunkRange {
  uint32_t begin = 0, end = 0;
};

// The sender's side of a window: the chunks that are written and have not been read.
class OutWindow {
 public:
  explicit OutWindow(uint32_t slots) : slots_(slots) {}

  // All chunks before `number` have been read. Returns false if this is impossible.
  bool read(uint64_t number, uint64_t passed);
  uint64_t read() const { return read_; }
  // Chunk `number` is complete and waits for rails.
  void add_waiting(uint64_t number, uint32_t bytes);
  // The chunk was sent without a rail.
  void skip(uint64_t number) { slot(number).pieces.clear(); }

  bool any_waiting() const { return waiting_ > 0; }
  // Finds the first bytes that have no rail, in the first chunk before `passed` that has any. Returns false if there are
  // none.
  bool find_waiting(uint64_t passed, uint64_t *number, ChunkRange *range) const;
  // The first `bytes` bytes of them were sent.
  void sent(uint64_t number, uint32_t bytes, const RailTicket &ticket);
  // Pieces that had not arrived before this end wait again.
  void requeue(const RailEnd &end, uint64_t passed);
  // Returns whether nothing waits and arrived() is true for the ticket of each piece.
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
    std::vector<Piece> pieces;  // pieces that were sent
  };
  Slot &slot(uint64_t number) { return slots_[number % slots_.size()]; }
  const Slot &slot(uint64_t number) const { return slots_[number % slots_.size()]; }

  std::vector<Slot> slots_;
  uint64_t read_ = 0;
  uint32_t waiting_ = 0;  // number of chunks with waiting bytes
};

// The receiver's side of a window: the pieces that have arrived, in any order.
class InWindow {
 public:
  explicit InWindow(uint32_t slots) : slots_(slots) {}

  // Returns whether a message for chunk `number` may come when `read` chunks have been read.
  bool may_come(uint64_t number, uint64_t read) const;
  // Records a piece; `last`: it has the last bytes of the chunk. Returns false if the peer may not send it.
  bool record_piece(uint64_t number, uint64_t read, ChunkRange range, bool last);
  bool has_arrived(uint64_t number) const;
  // Chunk `number` was published to readers; its slot now waits for another chunk.
  void publish(uint64_t number);

 private:
  struct Slot {
    std::vector<ChunkRange> arrived;
    // Bytes that have not come; while the size is unknown, UINT64_MAX minus the bytes that have come.
    uint64_t missing = UINT64_MAX;
    uint32_t bytes = UINT32_MAX;  // size of the chunk; UINT32_MAX until the last piece has come
  };

  std::vector<Slot> slots_;
  uint64_t published_ = 0;
};

}  // namespace collc
