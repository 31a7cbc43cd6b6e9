// ncclSend, ncclRecv and collectives made of them on the CUDA target: one kernel for all transfers of a rank in a group.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "cuda/launches.h"

namespace collc::cuda {
namespace {

bool is_transfer(const Submission &submission) {
  return submission.call.work == Work::kSend || submission.call.work == Work::kReceive;
}
bool is_own(const Submission &submission) { return submission.call.peer == rank_of(submission).context().rank; }

const Segment *segment_of(const Submission &submission) { return rank_of(submission).context().segment.get(); }

// One direction between two ranks of one communicator in a group.
struct Way {
  const Segment *segment;
  uint32_t from, to;
  bool operator<(const Way &other) const { return std::tie(segment, from, to) < std::tie(other.segment, other.from, other.to); }
};
Way way_of(const Submission &submission) {
  const uint32_t rank = rank_of(submission).context().rank, peer = submission.call.peer;
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

// Checks a way whose two ends one launch or copy has to serve: from a rank to itself, or between ranks that share a GPU.
Status check_way(const std::vector<Submission> &batch, const Way &way, const Ends &ends) {
  const CudaRank &rank = rank_of(batch[ends.sends.empty() ? ends.receives[0] : ends.sends[0]]);
  const bool own = way.from == way.to;
  const uint32_t other = rank.context().rank == way.from ? way.to : way.from;
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

// The arguments of one launch of transfers.
struct Listed {
  std::vector<CudaRank *> ranks;
  std::vector<ExchangeRank> rows;
  std::vector<Message> messages;
  uint32_t lanes = 1, streams = 0;  // the most of any message, of any rank
};

// The messages of a rank among the calls: first those that no other one with the same end comes before.
void list_messages(const Together &calls, CudaRank &rank, Listed *all) {
  const LanePlan &lanes = rank.world()->plan().lanes;
  std::vector<const Call *> mine, later;
  std::map<uint32_t, uint32_t> last;  // of each end
  const auto end_of = [&](const Call &call) {
    return rank.context().placement.plan_rank[call.peer] + (call.work == Work::kSend ? rank.context().nranks : 0);
  };
  for (const Submission *submission : calls)
    if (&rank_of(*submission) == &rank)
      (last.emplace(end_of(submission->call), 0).second ? mine : later).push_back(&submission->call);
  const auto streams = static_cast<uint32_t>(mine.size());
  mine.insert(mine.end(), later.begin(), later.end());
  const auto first = static_cast<uint32_t>(all->messages.size());
  for (uint32_t m = 0; m < mine.size(); ++m) {
    const Call &call = *mine[m];
    const bool sends = call.work == Work::kSend;
    const uint32_t end = end_of(call);
    Message message;
    message.data = static_cast<char *>(sends ? const_cast<void *>(call.input) : call.output);
    message.bytes = bytes_of(call);
    message.signature = call.signature;
    message.end = end & 0xffff;
    message.sends = sends;
    message.leaves = !rank.context().placement.is_here(call.peer);
    message.next = 0xffffffff;
    all->messages.push_back(message);
    if (m >= streams) all->messages[first + last[end]].next = m;
    last[end] = m;
    const uint64_t most = message.leaves != 0 ? 1 : lanes.lanes;
    const uint64_t used = std::min<uint64_t>((message.bytes + lanes.bytes - 1) / lanes.bytes, most);
    all->lanes = std::max(all->lanes, static_cast<uint32_t>(used));
  }
  all->ranks.push_back(&rank);
  all->rows.push_back({rank.memory().state(), first, streams});
  all->streams = std::max(all->streams, streams);
}

// On the stream, before the launch that reads them. The arguments are left as that launch needs them.
Status fill_table(CudaRank &owner, const std::vector<Message> &messages, Exchange *arguments, Stream stream) {
  const uint32_t lanes = arguments->nlanes;
  arguments->table = owner.memory().messages();
  arguments->nlanes = 1;
  void *parameters[] = {arguments};
  for (size_t at = 0; at < messages.size(); at += kMostMessages) {
    arguments->load_at = static_cast<uint32_t>(at);
    arguments->loads = static_cast<uint32_t>(std::min<size_t>(kMostMessages, messages.size() - at));
    std::copy_n(messages.begin() + static_cast<ptrdiff_t>(at), arguments->loads, arguments->messages);
    COLLC_RETURN_IF_FAILED(check(driver().launch(owner.device().exchange, 1, 1, 1, owner.async_calls()->threads(), 1, 1,
                                                 exchange_shared(0), stream, parameters, nullptr),
                                 "launching transfers"));
  }
  arguments->nlanes = lanes;
  arguments->loads = 0;
  return {};
}

Status launch_transfers(const Together &calls) {
  Listed all;
  for (const Submission *call : calls)
    if (std::find(all.ranks.begin(), all.ranks.end(), &rank_of(*call)) == all.ranks.end())
      list_messages(calls, rank_of(*call), &all);
  Exchange arguments;
  arguments.nranks = static_cast<uint32_t>(all.ranks.size());
  arguments.nlanes = all.lanes;
  arguments.table = nullptr;
  arguments.load_at = arguments.loads = 0;
  std::copy(all.rows.begin(), all.rows.end(), arguments.ranks);
  for (const Submission *call : calls) rank_of(*call).peers().note_transfer(call->call.peer);
  CudaRank &first = *all.ranks[0];
  const Current current(first.device().context);
  void *parameters[] = {&arguments};
  const Grid grid = {first.device().exchange, arguments.nranks * arguments.nlanes, first.async_calls()->threads(),
                     exchange_shared(all.streams), arguments.nranks > 1};
  return between_streams(calls, [&](const MainStream &main) -> Status {
    if (all.messages.size() <= kMostMessages)
      std::copy(all.messages.begin(), all.messages.end(), arguments.messages);
    else
      COLLC_RETURN_IF_FAILED(fill_table(first, all.messages, &arguments, main.stream));
    return first.async_calls()->launch(grid, main.stream, main.place, parameters, "launching transfers");
  });
}

// Cuts calls that are more than a table holds. Both ends of all transfers come in one order then, by their numbers between two
// ranks and by the ranks: the first transfer of all that has not ended has begun at both ends, whatever the others wait for.
std::vector<Together> cut(const Together &calls) {
  if (calls.size() <= kTableMessages) return {calls};
  using Key = std::tuple<size_t, uint32_t, uint32_t>;
  std::map<std::pair<Way, bool>, size_t> numbers;
  std::vector<std::pair<Key, Submission *>> order;
  for (Submission *call : calls) {
    const Way way = way_of(*call);
    order.push_back({Key{numbers[{way, call->call.work == Work::kSend}]++, way.from, way.to}, call});
  }
  std::stable_sort(order.begin(), order.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<Together> parts(1);
  for (size_t i = 0; i < order.size(); ++i) {
    // Two ranks that share the GPU have both ends in one launch.
    const bool joined = i != 0 && order[i].first == order[i - 1].first;
    if (!joined && parts.back().size() + 2 > kTableMessages) parts.emplace_back();
    parts.back().push_back(order[i].second);
  }
  return parts;
}

void copy_to_itself(Submission &send, Submission &receive) {
  const Current current(rank_of(send).device().context);
  if (send.call.input == receive.call.output) return;
  send.status = receive.status = between_streams({&send, &receive}, [&](const MainStream &main) {
    return check(driver().copy_async(address(receive.call.output), address(send.call.input), bytes_of(send.call), main.stream),
                 "copying");
  });
}

}  // namespace

Status check_transfers(const std::vector<Submission> &batch) {
  std::map<std::pair<const Segment *, const Device *>, std::set<const CudaRank *>> launches;
  for (const Submission &submission : batch) {
    if (!is_transfer(submission) || is_own(submission)) continue;
    const CudaRank &rank = rank_of(submission);
    std::set<const CudaRank *> &ranks = launches[{segment_of(submission), &rank.device()}];
    ranks.insert(&rank);
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
  for (const auto &[key, calls] : launches)
    for (const Together &part : cut(calls)) {
      const Status status = launch_transfers(part);
      for (Submission *submission : part) submission->status = status;
    }
}

}  // namespace collc::cuda
