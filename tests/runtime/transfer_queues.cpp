// The queues of transfers for any number of ranks: what they take, and that data passes through the smallest slots whole.
// Prints, for each number of ranks of the arguments, the bytes of a slot and the bytes of all slots.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "transport/transfers.h"

using namespace collc;

namespace {

bool pass_through(uint32_t nranks) {
  const TransferLayout layout(nranks, 0);
  std::shared_ptr<Segment> segment;
  const Status made = Segment::create({nranks, 64, layout.end()}, &segment);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.text().c_str());
    return false;
  }
  const uint32_t from = nranks - 1, to = nranks / 2 - 1;
  Transfers sender(*segment, layout, from), receiver(*segment, layout, to);
  std::vector<unsigned char> sent(300007), received(sent.size() + 1, 0xee);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  Call call = {};
  call.count = sent.size();
  call.type = ncclUint8;
  call.signature = 77;
  Status ends[2];
  call.work = Work::kSend, call.peer = to, call.input = sent.data();
  sender.post(call, &ends[0]);
  call.work = Work::kReceive, call.peer = from, call.output = received.data();
  receiver.post(call, &ends[1]);
  while (!sender.idle() || !receiver.idle()) {
    const bool moved = sender.advance() | receiver.advance();
    if (!moved || sender.difference() != nullptr || receiver.difference() != nullptr) return false;
  }
  // Nobody else's queue was touched.
  const char *const memory = segment->memory();
  const char *const begin = memory + layout.queue(from, to), *const end = memory + layout.queue(from, to + 1);
  const auto zero = [](char c) { return c == 0; };
  return std::equal(sent.begin(), sent.end(), received.begin()) && received.back() == 0xee && ends[0].ok() && ends[1].ok() &&
         std::all_of(memory, begin, zero) && std::all_of(end, memory + layout.end(), zero);
}

}  // namespace

int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    const auto nranks = static_cast<uint32_t>(std::atoi(argv[i]));
    const TransferLayout layout(nranks, 0);
    const uint64_t slots = uint64_t{nranks} * nranks * TransferLayout::kSlots * layout.slot_bytes();
    std::printf("%u %u %llu %llu\n", nranks, layout.slot_bytes(), static_cast<unsigned long long>(slots),
                static_cast<unsigned long long>(layout.end()));
  }
  for (const uint32_t nranks : {2u, 72u, 256u}) {
    if (pass_through(nranks)) continue;
    std::fprintf(stderr, "%u ranks: what was received is not what was sent\n", nranks);
    return 1;
  }
  return 0;
}
