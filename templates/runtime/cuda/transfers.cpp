// ncclSend, ncclRecv and what is made of them on the CUDA target: one kernel for all transfers of a rank in a group.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/element.h"
#include "cuda/launches.h"

namespace collc::cuda {
namespace {

bool is_transfer(const Submission &submission) {
  return submission.call.work == Work::kSend || submission.call.work == Work::kReceive;
}
bool is_own(const Submission &submission) { return submission.call.peer == rank_of(submission).rank(); }

uint64_t bytes_of(const Call &call) { return call.count * element_bytes(call.type); }

const Segment *segment_of(const Submission &submission) { return rank_of(submission).context().segment.get(); }

// What a group has of one direction between two ranks of one communicator.
struct Way {
  const Segment *segment;
  uint32_t from, to;
  bool operator<(const Way &other) const { return std::tie(segment, from, to) < std::tie(other.segment, other.from, other.to); }
};
Way way_of(const Submission &submission) {
  const uint32_t rank = rank_of(submission).rank(), peer = submission.call.peer;
  const bool sends = submission.call.work == Work::kSend;
  return {segment_of(submission), sends ? rank : peer, sends ? peer : rank};
}

// Both ends of the ways in a group, in the order of the calls: numbers of submissions.
struct Ends {
  std::vector<size_t> sends, receives;
};
std::map<Way, Ends> ways_of(const std::vector<Submission> &batch) {
  std::map<Way, Ends> ways;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!is_transfer(batch[i])) continue;
    Ends &ends = ways[way_of(batch[i])];
    (batch[i].call.work == Work::kSend ? ends.sends : ends.receives).push_back(i);
  }
  return ways;
}

// Ways whose two ends one launch or copy has to serve: those of a rank to itself, and between ranks that share a GPU.
Status check_way(const std::vector<Submission> &batch, const Way &way, const Ends &ends) {
  const CudaRank &rank = rank_of(batch[ends.sends.empty() ? ends.receives[0] : ends.sends[0]]);
  const bool own = way.from == way.to;
  const uint32_t other = rank.rank() == way.from ? way.to : way.from;
  if (!own && !rank.world()->shares(rank.context().placement.plan_rank[other], &rank.device())) return {};
  if (ends.sends.size() != ends.receives.size())
    return fail(ncclInvalidUsage, "rank %u sends to %s: both ends of such a transfer must be in one group of one thread",
                way.from, own ? "itself" : format("rank %u on the same GPU", way.to).c_str());
  for (size_t i = 0; own && i < ends.sends.size(); ++i) {
    const Call &send = batch[ends.sends[i]].call, &receive = batch[ends.receives[i]].call;
    if (sign_transfer(send.type, send.count) != sign_transfer(receive.type, receive.count))
      return fail(ncclInvalidUsage, "calls differ: rank %u is in %s; rank %u is in %s", way.from,
                  describe_call(pack_transfer(false, send.type, static_cast<int>(way.to)), send.count).c_str(), way.to,
                  describe_call(pack_transfer(true, receive.type, static_cast<int>(way.from)), receive.count).c_str());
  }
  return {};
}

// The messages of rank `rank` among the calls of a launch, from `first` on. Returns how many lanes the longest one needs.
uint32_t add_messages(const Together &calls, const CudaRank &rank, Message *first, uint32_t *count) {
  const LanePlan &lanes = rank.world()->plan().lanes;
  uint64_t used = 1;
  std::map<uint32_t, uint32_t> last;  // by end
  for (const Submission *submission : calls) {
    const Call &call = submission->call;
    if (&rank_of(*submission) != &rank) continue;
    const bool sends = call.work == Work::kSend;
    const uint32_t end = rank.context().placement.plan_rank[call.peer] + (sends ? rank.context().nranks : 0);
    Message &message = first[*count];
    message.data = static_cast<char *>(sends ? const_cast<void *>(call.input) : call.output);
    message.bytes = bytes_of(call);
    message.signature = call.signature;
    message.end = end & 0xffff;
    message.sends = sends;
    message.is_first = last.count(end) == 0;
    message.next = 0xffffffff;
    if (!message.is_first) first[last[end]].next = *count;
    last[end] = (*count)++;
    used = std::max(used, std::min<uint64_t>((message.bytes + lanes.bytes - 1) / lanes.bytes, lanes.lanes));
  }
  return static_cast<uint32_t>(used);
}

Status launch_transfers(const Together &calls) {
  std::vector<CudaRank *> ranks;
  for (const Submission *call : calls)
    if (std::find(ranks.begin(), ranks.end(), &rank_of(*call)) == ranks.end()) ranks.push_back(&rank_of(*call));
  Exchange arguments;
  arguments.nranks = static_cast<uint32_t>(ranks.size());
  arguments.nlanes = 1;
  uint32_t all = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    uint32_t count = 0;
    arguments.nlanes = std::max(arguments.nlanes, add_messages(calls, *ranks[r], arguments.messages + all, &count));
    arguments.ranks[r] = {reinterpret_cast<const RankState *>(ranks[r]->state()), all, count};
    all += count;
  }
  for (const Submission *call : calls) rank_of(*call).note_transfer(call->call.peer);
  const CudaRank &first = *ranks[0];
  const Driver &cu = driver();
  const Current current(first.device().context);
  const Function kernel = first.device().exchange;
  void *parameters[] = {&arguments};
  const uint32_t blocks = arguments.nranks * arguments.nlanes, threads = first.threads();
  return between_streams(calls, [&](Stream stream) {
    return check(arguments.nranks == 1
                     ? cu.launch(kernel, blocks, 1, 1, threads, 1, 1, kExchangeShared, stream, parameters, nullptr)
                     : cu.launch_cooperative(kernel, blocks, 1, 1, threads, 1, 1, kExchangeShared, stream, parameters),
                 "launching transfers");
  });
}

void copy_to_itself(Submission &send, Submission &receive) {
  const Current current(rank_of(send).device().context);
  if (send.call.input == receive.call.output) return;
  send.status = receive.status = between_streams({&send, &receive}, [&](Stream stream) {
    return check(driver().copy_async(address(receive.call.output), address(send.call.input), bytes_of(send.call), stream),
                 "copying");
  });
}

}  // namespace

Status check_transfers(const std::vector<Submission> &batch) {
  std::map<std::pair<const Segment *, const Device *>, std::pair<uint32_t, std::set<const CudaRank *>>> launches;
  for (const Submission &submission : batch) {
    if (!is_transfer(submission) || is_own(submission)) continue;
    const CudaRank &rank = rank_of(submission);
    auto &[count, ranks] = launches[{segment_of(submission), &rank.device()}];
    ranks.insert(&rank);
    if (++count > kMostMessages)
      return fail(ncclInvalidUsage, "a group holds more than %u transfers on GPU %d: use several groups", kMostMessages,
                  rank.device().number);
    if (ranks.size() > kMostExchangeRanks)
      return fail(ncclInvalidUsage, "more than %u ranks that share GPU %d have transfers in one group", kMostExchangeRanks,
                  rank.device().number);
  }
  for (const auto &[way, ends] : ways_of(batch)) COLLC_RETURN_IF_FAILED(check_way(batch, way, ends));
  return {};
}

void run_transfers(std::vector<Submission> &batch) {
  for (const auto &[way, ends] : ways_of(batch))
    for (size_t i = 0; way.from == way.to && i < ends.sends.size(); ++i)
      copy_to_itself(batch[ends.sends[i]], batch[ends.receives[i]]);
  // By communicator, in the order that is the same on all ranks, and device.
  std::map<std::tuple<uint64_t, const Segment *, const Device *>, Together> launches;
  for (Submission &submission : batch) {
    if (!is_transfer(submission) || is_own(submission)) continue;
    const CudaRank &rank = rank_of(submission);
    launches[{rank.context().order, segment_of(submission), &rank.device()}].push_back(&submission);
  }
  for (auto &[key, calls] : launches) {
    const Status status = launch_transfers(calls);
    for (Submission *submission : calls) submission->status = status;
  }
}

}  // namespace collc::cuda
