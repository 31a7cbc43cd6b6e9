#include "communicator/link_check.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "control/call_log.h"

namespace collc {
namespace {

constexpr uint64_t kSizes[] = {64 << 10, 1 << 20, 16 << 20};
// A pair goes on to the next size if the last one took less.
constexpr double kGoesOn = 2e-3;
constexpr uint32_t kRepeats = 3;
// A pair is slow if a message takes longer than kSlow times the topology's time plus kCall seconds, the time of a call.
constexpr double kSlow = 4, kCall = 300e-6;
constexpr size_t kMostNamed = 4;  // in one error

// The message of a rank to all others between two rounds.
struct Word {
  uint64_t address;  // of its send buffer
  uint32_t cores;
  uint32_t received;  // 1: the rest is of a message that it has received in this round
  uint64_t wrong;     // bytes, of all repeats
  uint64_t first;     // the first of them
  uint32_t got, sent;  // what it is, and should be
  double seconds;     // the best
  uint32_t by_address;  // 1: the wrong bytes were read at the sender's address
  uint32_t reserved;
};

// Two numbers as one that says nothing of either.
uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Fills `data` with the bytes that `from` sends to `to`. They differ for each pair and size, and no 8 bytes are equal to
// others.
void fill(std::vector<uint64_t> *data, uint32_t from, uint32_t to, uint64_t bytes) {
  const uint64_t seed = mix(mix(from, to), bytes);
  data->resize(bytes / sizeof(uint64_t));
  for (size_t i = 0; i < data->size(); ++i) (*data)[i] = mix(seed, i);
}

// A pair, and how far it has come.
struct Pair {
  RankPath way;
  Word found = {};
  uint64_t bytes = 0;
  bool goes_on = true;
};

using Round = std::vector<Pair *>;

// Pairs of a round share no rank and no link, and are not more than `most`.
std::vector<Round> make_rounds(std::vector<Pair> &pairs, uint32_t nranks, uint32_t nlinks, size_t most) {
  std::vector<Round> rounds;
  std::vector<std::vector<bool>> taken;  // by round: ranks, then links
  for (Pair &pair : pairs) {
    std::vector<uint32_t> needs = {pair.way.from, pair.way.to};
    for (const uint32_t link : pair.way.links) needs.push_back(nranks + link);
    size_t at = 0;
    const auto fits = [&](size_t round) {
      return rounds[round].size() < most &&
             std::none_of(needs.begin(), needs.end(), [&](uint32_t need) { return taken[round][need]; });
    };
    while (at < rounds.size() && !fits(at)) ++at;
    if (at == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back(nranks + nlinks);
    }
    rounds[at].push_back(&pair);
    for (const uint32_t need : needs) taken[at][need] = true;
  }
  return rounds;
}

class LinkCheck {
 public:
  LinkCheck(const RankContext &context, RankBackend &rank) : context_(context), rank_(rank) {}

  Status run() {
    COLLC_RETURN_IF_FAILED(prepare());
    for (const Round &round : make_rounds(pairs_, context_.nranks, context_.placement.allocation->nlinks, together_))
      COLLC_RETURN_IF_FAILED(run_round(round));
    return {};
  }
  const std::vector<Pair> &pairs() const { return pairs_; }
  const std::vector<RankPath> &skipped() const { return skipped_; }

 private:
  Status prepare() {
    const uint64_t most = backend().facts().max_checked_bytes;
    for (const uint64_t bytes : kSizes)
      if (bytes <= most) sizes_.push_back(bytes);
    COLLC_RETURN_IF_FAILED(rank_.make_link_bench(most, &bench_));  // the others learn it: creation fails
    Word mine = {};
    mine.address = reinterpret_cast<uint64_t>(bench_->buffer(true));
    mine.cores = context_.cores;
    COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &words_));
    for (const Word &word : words_) addresses_.push_back(word.address);
    Bytes row(context_.nranks), all;
    for (uint32_t peer = 0; peer < context_.nranks; ++peer) row[peer] = bench_->can_transfer(peer) ? 1 : 0;
    COLLC_RETURN_IF_FAILED(exchange_rows(context_.exchange, row, &all));
    for (RankPath &way : find_rank_paths(context_.placement)) {
      const bool both =
          all[size_t{way.from} * context_.nranks + way.to] != 0 && all[size_t{way.to} * context_.nranks + way.from] != 0;
      if (both)
        pairs_.push_back({std::move(way)});
      else
        skipped_.push_back(std::move(way));
    }
    // Where processors move the data, each end of a pair needs one.
    uint32_t cores = context_.cores;
    for (const Word &word : words_) cores = std::min(cores, word.cores);
    together_ = backend().facts().measures_links ? SIZE_MAX : std::max(cores / 2, 1u);
    return {};
  }

  Status run_round(const Round &round) {
    for (const uint64_t bytes : sizes_) {
      Word mine = {};
      for (const Pair *pair : round) {
        if (!pair->goes_on) continue;
        if (pair->way.from == context_.rank) COLLC_RETURN_IF_FAILED(told(send(*pair, bytes), pair->way.to));
        if (pair->way.to == context_.rank) COLLC_RETURN_IF_FAILED(told(receive(*pair, bytes, &mine), pair->way.from));
      }
      COLLC_RETURN_IF_FAILED(exchange(context_.exchange, mine, &words_));
      bool any = false;
      for (Pair *pair : round) {
        if (!pair->goes_on) continue;
        const Word &word = words_[pair->way.to];
        if (pair->found.wrong == 0) pair->found = word;
        pair->bytes = bytes;
        pair->goes_on = word.wrong == 0 && word.seconds < kGoesOn;
        any |= pair->goes_on;
      }
      if (!any) break;
    }
    return {};
  }

  static Status told(const Status &status, uint32_t peer) {
    return status.ok() ? status : fail(status.code(), "COLLC_CHECK, with rank %u: %s", peer, status.text().c_str());
  }

  Status call(Work work, uint32_t peer, uint64_t bytes) {
    Submission submission;
    submission.rank = &rank_;
    Call &call = submission.call;
    call = {};
    call.work = work;
    call.peer = peer;
    call.collective = Collective::kSendRecv;
    const bool sends = work == Work::kSend;
    call.input = bench_->buffer(true);
    call.output = bench_->buffer(false);
    call.count = bytes;
    call.type = ncclUint8;
    call.root = -1;
    call.stream = bench_->stream();
    call.packed_call = pack_transfer(!sends, call.type, static_cast<int>(peer));
    call.signature = sign_transfer(call.type, call.count);
    std::vector<Submission> batch{submission};
    COLLC_RETURN_IF_FAILED(backend().admit(batch));
    backend().run(batch);
    COLLC_RETURN_IF_FAILED(batch[0].status);
    return bench_->wait();
  }

  // The receiver reports when it is ready, so that its time contains the whole transfer.
  Status send(const Pair &pair, uint64_t bytes) {
    fill(&data_, context_.rank, pair.way.to, bytes);
    COLLC_RETURN_IF_FAILED(bench_->put(true, data_.data(), bytes));
    for (uint32_t i = 0; i < kRepeats; ++i) {
      COLLC_RETURN_IF_FAILED(call(Work::kReceive, pair.way.to, kReady));
      COLLC_RETURN_IF_FAILED(call(Work::kSend, pair.way.to, bytes));
    }
    return {};
  }

  Status receive(const Pair &pair, uint64_t bytes, Word *word) {
    const uint32_t peer = pair.way.from;
    fill(&data_, peer, context_.rank, bytes);
    got_.resize(data_.size());
    word->received = 1;
    for (uint32_t i = 0; i < kRepeats; ++i) {
      COLLC_RETURN_IF_FAILED(clear(bytes));
      COLLC_RETURN_IF_FAILED(call(Work::kSend, peer, kReady));
      const uint64_t start = now_ns();
      COLLC_RETURN_IF_FAILED(call(Work::kReceive, peer, bytes));
      const double seconds = static_cast<double>(now_ns() - start) / 1e9;
      if (i == 0 || seconds < word->seconds) word->seconds = seconds;
      COLLC_RETURN_IF_FAILED(bench_->get(got_.data(), bytes));
      compare(bytes, false, word);
    }
    COLLC_RETURN_IF_FAILED(clear(bytes));
    Status status;
    if (bench_->read_address(peer, addresses_[peer], got_.data(), bytes, &status)) compare(bytes, true, word);
    return status;
  }

  // Overwrites the receive buffer with bytes that differ from the expected bytes.
  Status clear(uint64_t bytes) {
    for (size_t i = 0; i < data_.size(); ++i) got_[i] = ~data_[i];
    return bench_->put(false, got_.data(), bytes);
  }

  void compare(uint64_t bytes, bool by_address, Word *word) const {
    if (std::memcmp(data_.data(), got_.data(), bytes) == 0) return;
    const auto *const sent = reinterpret_cast<const unsigned char *>(data_.data());
    const auto *const got = reinterpret_cast<const unsigned char *>(got_.data());
    for (uint64_t i = 0; i < bytes; ++i) {
      if (sent[i] == got[i]) continue;
      if (word->wrong++ != 0) continue;
      word->first = i;
      word->got = got[i];
      word->sent = sent[i];
      word->by_address = by_address ? 1 : 0;
    }
  }

  static constexpr uint64_t kReady = 8;

  const RankContext &context_;
  RankBackend &rank_;
  std::unique_ptr<LinkBench> bench_;
  std::vector<uint64_t> sizes_, addresses_, data_, got_;
  std::vector<Word> words_;
  std::vector<Pair> pairs_;
  std::vector<RankPath> skipped_;
  size_t together_ = 1;
};

// "rank 1 (gpu1) on node-a".
std::string who(const Placement &placement, uint32_t rank) {
  const std::string gpu = gpu_name(placement, rank);
  const std::string host = placement.host_names.empty() ? "" : " on " + placement.host_names[rank];
  return format("rank %u", rank) + (gpu.empty() ? "" : " (" + gpu + ")") + host;
}

std::string between(const Placement &placement, const RankPath &way) {
  return who(placement, way.from) + " to " + who(placement, way.to) + (way.path.empty() ? "" : ", " + way.path);
}

std::string describe_wrong(const Placement &placement, const Pair &pair) {
  const Word &found = pair.found;
  return "from " + between(placement, pair.way) +
         format(": %llu of %llu bytes are wrong, the first is byte %llu, 0x%02x for 0x%02x%s",
                static_cast<unsigned long long>(found.wrong),
                static_cast<unsigned long long>(pair.bytes * (kRepeats + found.by_address)),
                static_cast<unsigned long long>(found.first), found.got, found.sent,
                found.by_address != 0 ? " (read out of the sender's memory)" : "");
}

}  // namespace

Status check_links(const RankContext &context, RankBackend &rank, std::vector<CheckedPair> *pairs,
                   std::vector<std::string> *slow) {
  if (context.placement.allocation == nullptr) return {};
  LinkCheck check(context, rank);
  if (const Status status = check.run(); !status.ok()) {
    context.segment->abort(status, context.rank);  // a peer may be waiting for data
    return status;
  }
  std::string wrong;
  size_t bad = 0;
  for (const Pair &pair : check.pairs()) {
    const RankPath &way = pair.way;
    if (pair.found.wrong != 0 && bad++ < kMostNamed) wrong += (bad == 1 ? "" : "; ") + describe_wrong(context.placement, pair);
    const bool compares = way.link == LinkClass::kNet || backend().facts().measures_links;
    const double gbps = compares ? way.gbps : 0;
    const double expected = gbps > 0 ? static_cast<double>(pair.bytes) / (gbps * 1e9) : 0;
    const bool is_slow = gbps > 0 && pair.found.seconds > kSlow * expected + kCall;
    pairs->push_back({way.from, way.to, static_cast<uint32_t>(way.link), is_slow ? CheckedPair::kSlow : CheckedPair::kGood,
                      pair.bytes, pair.found.seconds, gbps});
    if (is_slow && pair.found.wrong == 0)
      slow->push_back(
          "from " + between(context.placement, way) +
          format(": %.4g GB/s, the topology says %.4g", static_cast<double>(pair.bytes) / pair.found.seconds / 1e9, gbps));
  }
  for (const RankPath &way : check.skipped())
    pairs->push_back({way.from, way.to, static_cast<uint32_t>(way.link), CheckedPair::kNotChecked, 0, 0, 0});
  if (bad > kMostNamed) wrong += format("; and %zu more pairs", bad - kMostNamed);
  return bad == 0 ? Status() : fail(ncclSystemError, "COLLC_CHECK: %s", wrong.c_str());
}

}  // namespace collc
