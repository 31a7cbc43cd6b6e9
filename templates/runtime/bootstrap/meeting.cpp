#include "bootstrap/meeting.h"

#include <algorithm>
#include <cstring>

#include "bootstrap/rendezvous.h"

namespace collc {
namespace {

constexpr int64_t kTellMs = 60000;  // how long ranks that join a failed creation are told why, at most
constexpr int64_t kGraceMs = 2000;  // a rank that waits for another by itself knows more, and speaks first
constexpr int kTickMs = 200;        // how often the clock is looked at where somebody waits

}  // namespace

void Meeting::welcome(Connection rank, const Hello &hello) {
  if (hello.nranks == 0 || (hello.rank >= hello.nranks && hello.rank != kNoRank)) return;  // no version of ours says that
  if (hello.rank != kNoRank && nranks_ == 0) {
    nranks_ = hello.nranks;
    round_ms_ = now_ms();
  }
  if (failure_ == ncclSuccess && join(hello)) {
    rank.send({0, kWelcome});
    ranks_[hello.rank].connection = std::move(rank);
    return;
  }
  rank.send_words(static_cast<uint32_t>(failure_), words_);
  dismiss(std::move(rank));
  if (hello.rank != kNoRank && hello.nranks == nranks_) ranks_[hello.rank] = {};
}

// Where it does not fit, no communicator of these ranks can come about.
bool Meeting::join(const Hello &hello) {
  if (hello.rank == kNoRank) return ranks_.count(kNoRank) == 0;
  if (hello.nranks != nranks_)
    fail_all(ncclInvalidUsage, format("rank %u says there are %u ranks, others say %u", hello.rank, hello.nranks, nranks_));
  else if (ranks_.count(hello.rank) != 0)
    fail_all(ncclInvalidUsage, format("rank %u joined twice", hello.rank));
  return failure_ == ncclSuccess;
}

void Meeting::fail_all(ncclResult_t code, const std::string &words, uint32_t teller) {
  if (failure_ != ncclSuccess) return;
  failure_ = code;
  words_ = words;
  failed_ms_ = now_ms();
  const auto tell = [&](Rank &rank) {
    if (rank.connection.open()) {
      rank.connection.send_words(static_cast<uint32_t>(code), words);
      dismiss(std::move(rank.connection));
    }
    rank = {};
  };
  for (auto &[number, rank] : ranks_)
    if (number != teller) tell(rank);
  if (ranks_.count(teller) != 0) tell(ranks_[teller]);
  ranks_.erase(kNoRank);
}

void Meeting::dismiss(Connection connection) {
  connection.end_sending();
  dismissed_.push_back(std::move(connection));
}

void Meeting::add_to(std::vector<pollfd> *polled) const {
  if (failure_ != ncclSuccess) return;
  for (const auto &[number, rank] : ranks_)
    if (rank.connection.open()) polled->push_back(rank.connection.polled());
}

void Meeting::attend(const pollfd **at) {
  if (failure_ != ncclSuccess) return;
  bool news = false;
  for (auto &[number, rank] : ranks_) {
    if (!rank.connection.open()) continue;
    const short events = (*at)++->revents;
    if (events == 0) continue;
    if ((events & POLLOUT) != 0) rank.connection.flush();
    if ((events & ~POLLOUT) != 0) news = hear(rank) || news;
  }
  if (news) judge();
  look_at_the_clock();
}

// True if there is something to decide.
bool Meeting::hear(Rank &rank) {
  const bool there = rank.connection.read(sizeof(Frame) + kMostMessage);
  Bytes &received = rank.connection.received;
  bool news = !there;
  // Words of failure may come at any time, a message once in a round.
  while (received.size() >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, received.data(), sizeof frame);
    std::string garbage;
    if (frame.size > kMostMessage) garbage = "sent garbage";
    if (garbage.empty() && received.size() < sizeof frame + frame.size) break;
    const auto begin = received.begin() + sizeof frame;
    const auto end = garbage.empty() ? begin + frame.size : received.end();
    if (frame.result == kGoodbye) {
      rank.done = true;
    } else {
      rank.spoke = true;
      rank.frame = garbage.empty() ? frame : Frame{0, static_cast<uint32_t>(ncclInternalError)};
      rank.message.assign(begin, end);
      if (!garbage.empty()) rank.message.assign(garbage.begin(), garbage.end());
    }
    received.erase(received.begin(), end);
    news = true;
  }
  if (!there) rank.connection.close();
  return news;
}

void Meeting::judge() {
  // The words of a rank that fails and leaves come before the note that it left.
  for (const auto &[number, rank] : ranks_) {
    if (!rank.spoke || rank.frame.result == 0) continue;
    const std::string said(rank.message.begin(), rank.message.end());
    const auto code = static_cast<ncclResult_t>(rank.frame.result);
    return fail_all(code, number == kNoRank ? said : format("rank %u: ", number) + said, number);
  }
  for (const auto &[number, rank] : ranks_) {
    if (rank.connection.open() || (rank.done && !round_begun())) continue;
    if (number == kNoRank)
      fail_all(ncclInvalidUsage, "a caller that cannot be one of the ranks has gone without a word");
    else
      fail_all(ncclRemoteError, format("rank %u left while the communicator was made", number), number);
    return;
  }
  const auto spoke = [](const auto &entry) { return entry.second.spoke; };
  if (ranks_.size() == nranks_ && std::all_of(ranks_.begin(), ranks_.end(), spoke)) finish_round();
}

bool Meeting::round_begun() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto &entry) { return entry.second.spoke; });
}

void Meeting::finish_round() {
  const auto all = std::make_shared<Bytes>();
  for (const auto &[number, rank] : ranks_) {
    const uint32_t size = static_cast<uint32_t>(rank.message.size());
    const auto *raw = reinterpret_cast<const unsigned char *>(&size);
    all->insert(all->end(), raw, raw + sizeof size);
    all->insert(all->end(), rank.message.begin(), rank.message.end());
  }
  ++complete_;
  round_ms_ = now_ms();
  for (auto &[number, rank] : ranks_) {
    rank.spoke = false;
    rank.connection.send({static_cast<uint32_t>(all->size()), 0}, all);
  }
}

int Meeting::timeout() const {
  if (failure_ != ncclSuccess) return 1000;
  return nranks_ != 0 && (complete_ == 0 || round_begun()) ? kTickMs : -1;
}

bool Meeting::over() const {
  if (failure_ != ncclSuccess && now_ms() - failed_ms_ > std::min(limit_ms_, kTellMs)) return true;
  return nranks_ != 0 && ranks_.size() == nranks_ &&
         std::none_of(ranks_.begin(), ranks_.end(), [](const auto &entry) { return entry.second.connection.open(); });
}

int64_t Meeting::untold_for() const { return failure_ == ncclSuccess || over() ? -1 : now_ms() - failed_ms_; }

void Meeting::look_at_the_clock() {
  if (nranks_ == 0 || failure_ != ncclSuccess) return;
  const int64_t waited = now_ms() - round_ms_;
  if (complete_ == 0 && waited > limit_ms_) fail_all(ncclSystemError, ranks_.size() < nranks_ ? missing() : silent());
  // Between rounds nobody waits here.
  else if (round_begun() && waited > limit_ms_ + kGraceMs)
    fail_all(ncclSystemError, silent());
}

std::string Meeting::missing() const {
  std::vector<uint32_t> absent;
  for (uint32_t r = 0; r < nranks_; ++r)
    if (ranks_.count(r) == 0) absent.push_back(r);
  return format("%zu of %u ranks did not join within %g s: %s", absent.size(), nranks_, static_cast<double>(limit_ms_) / 1e3,
                list_ranks(absent).c_str());
}

std::string Meeting::silent() const {
  std::vector<uint32_t> late;
  for (const auto &[number, rank] : ranks_)
    if (!rank.spoke && number != kNoRank) late.push_back(number);
  return too_late(late, "take the next step of the creation", static_cast<double>(limit_ms_) / 1e3);
}

}  // namespace collc
