// Transfers between two ranks: ncclSend, ncclRecv, and collectives made of them, between any two ranks that reach each other.
//
// Every ordered pair of ranks has p2p channels (`lanes`), each a FIFO with slots in the receiver's arena. A message is cut
// into chunks, which go over the first channels in turn; their number follows from the size of the message, so both ends know
// it. A block runs one channel of one rank, for all its peers and both directions. It polls all messages of its launch and
// moves every chunk that can be moved. So, however transfers are grouped, a message waits only for earlier messages between
// the same two ranks in the same direction, and nothing depends on the number of resident blocks. A slot starts with the
// sender's signature of the message; a receiver that expects another one ends the wait. To a rank on another server there is
// one channel, with slots in pinned host memory on both servers, and a proxy thread moves them.
#pragma once
#include "collc/cuda/device.h"
#include "collc/cuda/layout.h"
#include "collc/cuda/move.h"

namespace collc::cuda {

class ExchangeLane {
 public:
  COLLC_DEVICE ExchangeLane(const Exchange &launch)
      : launch_(launch),
        lane_(block_index() % launch.nlanes),
        mine_(launch.ranks[block_index() / launch.nlanes]),
        state_(*mine_.state),
        streams_(reinterpret_cast<ExchangeStream *>(shared_memory())),
        stop_(reinterpret_cast<uint32_t *>(shared_memory() + mine_.streams * sizeof(ExchangeStream))) {}

  COLLC_DEVICE void run() {
    if (launch_.loads != 0) return fill_table();
#pragma unroll 1
    for (uint32_t s = thread_index(); s < mine_.streams; s += thread_count()) streams_[s] = {0, s, 0};
    if (thread_index() == 0) *stop_ = 0;
    barrier();
    uint64_t start = state_.timeout_ns == 0 ? 0 : clock_ns();
#pragma unroll 1
    for (uint32_t spins = 0;;) {
      const uint64_t mark = look_mark();
      for_each_of_mine(&ExchangeLane::look);
      barrier();
      bool open = false, moved = false;
#pragma unroll 1
      for (uint32_t s = 0; s < mine_.streams; ++s) {
        const ExchangeStream stream = streams_[s];
        open |= stream.message != kNoMessage;
        if (stream.message == kNoMessage || stream.ready == 0) continue;
        moved = true;
        move(stream);
      }
      const bool ends = !open || *stop_ != 0;
      barrier();
      if (ends) return;
      for_each_of_mine(&ExchangeLane::publish);
      if (moved) {
        spins = 0;
        start = state_.timeout_ns == 0 ? 0 : clock_ns();
      } else if (thread_index() == 0) {
        backoff_since(mark, ++spins);
        if (spins % kSpinsPerLook == 0) give_up(start);
      }
    }
  }

 private:
  static constexpr uint32_t kNoMessage = 0xffffffff;

  // The kernel of the transfers follows this one on the stream.
  COLLC_DEVICE void fill_table() {
#pragma unroll 1
    for (uint32_t m = thread_index(); m < launch_.loads; m += thread_count()) {
      Pack parts[2];
      memcpy(parts, &launch_.messages[m], sizeof parts);
      auto *to = reinterpret_cast<Pack *>(launch_.table + launch_.load_at + m);
      store(to, parts[0]);
      store(to + 1, parts[1]);
    }
  }

  COLLC_DEVICE Message message_of(uint32_t number) const {
    if (launch_.table == nullptr) return launch_.messages[mine_.first + number];
    const auto *from = reinterpret_cast<const Pack *>(launch_.table + mine_.first + number);
    const Pack parts[2] = {load(from), load(from + 1)};
    Message message;
    memcpy(&message, parts, sizeof message);
    return message;
  }

  COLLC_DEVICE FifoEnd &end_of(const Message &message) const { return state_.lane_ends[message.end * state_.nlanes + lane_]; }
  static COLLC_DEVICE bool sends(const Message &message) { return message.sends != 0; }

  // Returns how many chunks of a message go over this channel.
  COLLC_DEVICE uint64_t chunks_of(const Message &message) const {
    const uint64_t all = (message.bytes + state_.lane_bytes - 1) / state_.lane_bytes;
    const uint64_t used = lanes_of(message);
    return lane_ < used ? (all + used - 1 - lane_) / used : 0;
  }
  COLLC_DEVICE uint64_t lanes_of(const Message &message) const {
    if (message.leaves != 0) return 1;
    const uint64_t all = (message.bytes + state_.lane_bytes - 1) / state_.lane_bytes;
    return all < state_.nlanes ? all : state_.nlanes;
  }

  COLLC_DEVICE char *slot_of(const FifoEnd &end) const {
    return end.slots + end.position % state_.lane_slots * (kSlotHead + state_.lane_bytes);
  }

  // Each stream belongs to one thread of the first warp; no other thread accesses its state and its flags.
  template <class Verb>
  COLLC_DEVICE void for_each_of_mine(Verb verb) {
    if (thread_index() >= kWarp) return;
#pragma unroll 1
    for (uint32_t s = thread_index(); s < mine_.streams; s += kWarp)
      if (streams_[s].message != kNoMessage) (this->*verb)(streams_[s]);
  }

  COLLC_DEVICE void look(ExchangeStream &stream) {
    stream.ready = 0;
    Message message = message_of(stream.message);
#pragma unroll 1
    while (stream.done == chunks_of(message)) {
      stream = {0, message.next, 0};
      if (stream.message == kNoMessage) return;
      message = message_of(stream.message);
    }
    FifoEnd &end = end_of(message);
    uint64_t need = end.position + 1;
    if (sends(message)) need = need <= state_.lane_slots ? 0 : need - state_.lane_slots;
    if (end.seen < need) {
      end.seen = flag_poll(end.wait_on);
      if (end.seen < need) return;
      if (!sends(message)) flag_acquire(end.wait_on);
    }
    stream.ready = 1;
    if (sends(message)) return;
    const uint64_t said = load(reinterpret_cast<const uint64_t *>(slot_of(end)));
    if (said == message.signature) return;
    report(stream, ReportState::kDiffers, said, message.signature);
    stream.ready = 0;
  }

  COLLC_DEVICE void move(const ExchangeStream &stream) {
    const Message message = message_of(stream.message);
    char *slot = slot_of(end_of(message));
    const uint64_t at = (stream.done * lanes_of(message) + lane_) * state_.lane_bytes;
    const uint64_t left = message.bytes - at, bytes = left < state_.lane_bytes ? left : state_.lane_bytes;
    if (sends(message)) {
      if (thread_index() == 0) store(reinterpret_cast<uint64_t *>(slot), message.signature);
      move_bytes(slot + kSlotHead, message.data + at, bytes);
    } else {
      move_bytes(message.data + at, slot + kSlotHead, bytes);
    }
  }

  template <class U>
  static COLLC_DEVICE void copy_units(char *to, char *from, uint64_t begin, uint64_t end) {
    using Moves = Mover<uint8_t, U>;
    Moves::template spread<typename Moves::Copy>(Places{from, nullptr, 0}, Places{to, nullptr, 0}, Arithmetic{}, begin, end);
  }
  static COLLC_DEVICE void move_bytes(char *to, char *from, uint64_t bytes) {
    const uint64_t misplaced = (reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % sizeof(Pack);
    uint64_t done = 0;
    if (misplaced == 0) {
      copy_units<Pack>(to, from, 0, bytes / sizeof(Pack));
      done = bytes / sizeof(Pack) * sizeof(Pack);
    } else if (misplaced % sizeof(uint32_t) == 0) {
      copy_units<uint32_t>(to, from, 0, bytes / sizeof(uint32_t));
      done = bytes / sizeof(uint32_t) * sizeof(uint32_t);
    }
    copy_units<uint8_t>(to, from, done, bytes);
  }

  COLLC_DEVICE void publish(ExchangeStream &stream) {
    if (stream.ready == 0) return;
    const Message message = message_of(stream.message);
    FifoEnd &end = end_of(message);
    if (end.chunk_bytes != nullptr) {
      const uint64_t left = message.bytes - stream.done * state_.lane_bytes;
      const uint64_t bytes = left < state_.lane_bytes ? left : state_.lane_bytes;
      host_store(reinterpret_cast<uint32_t *>(end.chunk_bytes) + end.position % state_.lane_slots,
                 static_cast<uint32_t>(kSlotHead + bytes));
    }
    ++end.position;
    ++stream.done;
    stream.ready = 0;
    if (sends(message))
      flag_store(end.publish_to, end.position);
    else
      free_slot(end.publish_to, end.position);
  }

  COLLC_DEVICE void give_up(uint64_t start) {
    ReportState why = ReportState::kNone;
    if (host_load(state_.abort_flag) != 0)
      why = ReportState::kAborted;
    else if (state_.timeout_ns != 0 && clock_ns() - start > state_.timeout_ns)
      why = ReportState::kTimedOut;
    if (why == ReportState::kNone) return;
#pragma unroll 1
    for (uint32_t s = 0; s < mine_.streams; ++s)
      if (streams_[s].message != kNoMessage) return report(streams_[s], why, 0, 0);
  }

  // Reports and ends all blocks of this rank.
  COLLC_DEVICE void report(const ExchangeStream &stream, ReportState why, uint64_t have, uint64_t need) {
    *stop_ = 1;
    Report &report = state_.reports[lane_];
    if (why == ReportState::kAborted && host_load(&report.state) != 0) return;
    report.peer = message_of(stream.message).end;
    report.program = kExchangeProgram;
    report.step = 0;
    report.have = have;
    report.need = need;
    host_store(&report.state, static_cast<uint32_t>(why));
    if (why != ReportState::kAborted) host_store(state_.abort_flag, 1);
  }

  const Exchange &launch_;
  const uint32_t lane_;
  const ExchangeRank &mine_;
  const RankState &state_;
  ExchangeStream *streams_;
  uint32_t *stop_;
};

}  // namespace collc::cuda
