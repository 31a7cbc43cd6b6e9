// A link between two machines whose FIFO has lines, over a connection that only notes: what counts as a move while a kernel
// leaves a chunk, and from where its data go.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "wire/link.h"

using namespace collc;

namespace {

constexpr uint32_t kChunk = 64, kSlots = 4;

void require(bool right, const char *what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::_Exit(1);
}

struct Noting final : WireConnection {
  std::vector<WireHead> heads;
  std::vector<const void *> bodies;
  std::string called = "nobody";
  void send(const WireHead &head, const void *body) override {
    heads.push_back(head);
    bodies.push_back(body);
  }
  uint64_t queued() const override { return heads.size(); }
  uint64_t sent() const override { return heads.size(); }
  uint64_t queued_bytes() const override { return 0; }
  Status progress(WireSink &, bool *, bool *) override { return {}; }
  bool drained() override { return true; }
  void finish() override {}
  void add_to(std::vector<pollfd> *) const override {}
  const std::string &name() const override { return called; }
};

}  // namespace

int main() {
  const uint32_t reader = 1;
  Fifo fifo = {};
  fifo.nreaders = 1;
  fifo.slots = kSlots;
  Tables tables = {};
  tables.fifos = &fifo;
  tables.fifo_readers = &reader;
  Allocation allocation = {};
  allocation.nranks = 2;
  allocation.nfifos = 1;
  allocation.slots = kSlots;
  allocation.slot_bytes = 128;
  Placement placement;
  placement.allocation = &allocation;
  placement.plan_rank = placement.nccl_rank = placement.machine = {0, 1};
  const FifoLayout whole(tables, placement, 0, {true, 0, nullptr, 0});
  const TransferLayout transfers(placement, whole.end(), true);
  const uint64_t begin = (transfers.end() + kPage - 1) / kPage * kPage;
  const FifoLayout lines(tables, placement, begin, {true, 2 * kChunk, nullptr, kChunk});
  std::shared_ptr<Segment> segment;
  require(Segment::create({2, 64, lines.end()}, &segment).ok(), "no memory");
  require(segment->attach(0).ok(), "no place");
  const Fifos fifos(tables, allocation, whole, segment->memory(), Fifos::kNobody);
  const Fifos lined(tables, allocation, lines, segment->memory(), Fifos::kNobody);
  auto owned = std::make_unique<Noting>();
  const Noting &noting = *owned;
  Link link({*segment, placement, fifos, transfers, lined}, {1, 2}, 1, std::move(owned));

  // Messages at the start do not count, and a heartbeat can come at any time.
  const auto chunks = [&] {
    std::vector<const void *> bodies;
    for (size_t i = 0; i < noting.heads.size(); ++i)
      if (kind_of(noting.heads[i]) == WireKind::kChunk) bodies.push_back(noting.bodies[i]);
    return bodies;
  };
  const auto moves = [&] {
    for (;;) {
      const size_t before = noting.heads.size();
      const bool moved = link.advance();
      if (noting.heads.size() == before) return moved;
      require(moved, "a message is a move");
      if (!chunks().empty()) return true;
    }
  };
  const auto put = [&](uint32_t word) { reinterpret_cast<uint64_t *>(lined[0].slots)[word] = uint64_t{1} << 32 | (word + 1); };
  require(!moves(), "nothing has begun");
  lined[0].lines[0].chunk.bytes = uint64_t{1} << 32 | 24;
  require(moves(), "that a kernel has told of a chunk is a move");
  require(!moves(), "it is none again while the kernel waits for its data");
  put(0);
  require(!moves(), "half of a line");
  put(1);
  require(moves(), "a line is a move");
  require(!moves(), "the same line again");
  for (const uint32_t word : {4u, 5u, 2u}) put(word);
  require(!moves(), "lines behind one that has not come");
  require(chunks().empty(), "nothing goes before all is there");
  put(3);
  require(moves() && chunks().size() == 1, "the chunk goes");
  const auto *const body = static_cast<const uint32_t *>(chunks()[0]);
  for (uint32_t word = 0; word < 6; ++word) require(body[word] == word + 1, "its data");
  // Of memory that outlives a connection, and is not among what the process has on its heap.
  const char *const at = reinterpret_cast<const char *>(body), *const memory = segment->memory();
  require(at == lined[0].rooms && at >= memory + begin && at + kSlots * kChunk <= memory + lines.end(), "in the segment");
  require((at - memory) % kPage == 0, "on a page of its own");
  require(lined[0].slots + kSlots * 2 * kChunk <= at, "behind all slots");
  require(!moves(), "nothing more");
  std::puts("done");
  return 0;
}
