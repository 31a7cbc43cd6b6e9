#include "bootstrap/rendezvous_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bootstrap/rendezvous.h"

namespace collc {
namespace {

constexpr int64_t kTellMs = 60000;  // for at most this long, ranks that join a failed creation get its error
constexpr int64_t kGraceMs = 2000;  // ranks that themselves wait for another rank know more, so they may report first
constexpr size_t kMostPlaces = 8;   // machines that an error names
constexpr int kTickMs = 200;        // how often timeouts are checked while ranks wait

}  // namespace

void RendezvousSession::admit(Connection rank, const Hello &hello) {
  // no version of collc sends such numbers
  if (hello.nranks == 0 || (hello.rank >= hello.nranks && hello.rank != kNoRank)) return;
  if (hello.rank != kNoRank && nranks_ == 0) {
    nranks_ = hello.nranks;
    round_ms_ = now_ms();
  }
  if (failure_ == ncclSuccess && join(hello)) {
    rank.send({0, kAdmitted});
    ranks_[hello.rank].connection = std::move(rank);
    return;
  }
  rank.send_words(static_cast<uint32_t>(failure_), words_);
  close_gracefully(std::move(rank));
  if (hello.rank != kNoRank && hello.nranks == nranks_) ranks_[hello.rank] = {};
}

// Returns whether the rank may join. A rank that contradicts the others fails the session, because these ranks cannot form a
// communicator.
bool RendezvousSession::join(const Hello &hello) {
  if (hello.rank == kNoRank) return ranks_.count(kNoRank) == 0;
  if (hello.nranks != nranks_)
    fail_all(ncclInvalidUsage, format("rank %u says there are %u ranks, others say %u", hello.rank, hello.nranks, nranks_));
  else if (ranks_.count(hello.rank) != 0)
    fail_all(ncclInvalidUsage, format("rank %u joined twice", hello.rank));
  return failure_ == ncclSuccess;
}

void RendezvousSession::fail_all(ncclResult_t code, const std::string &words, uint32_t reporter) {
  if (failure_ != ncclSuccess) return;
  failure_ = code;
  words_ = words;
  failed_ms_ = now_ms();
  const auto tell = [&](Rank &rank) {
    if (rank.connection.open()) {
      rank.connection.send_words(static_cast<uint32_t>(code), words);
      close_gracefully(std::move(rank.connection));
    }
    rank = {};
  };
  for (auto &[number, rank] : ranks_)
    if (number != reporter) tell(rank);
  if (ranks_.count(reporter) != 0) tell(ranks_[reporter]);
  ranks_.erase(kNoRank);
}

void RendezvousSession::close_gracefully(Connection connection) {
  connection.end_sending();
  closing_.push_back(std::move(connection));
}

void RendezvousSession::add_to(std::vector<pollfd> *polled) const {
  if (failure_ != ncclSuccess) return;
  for (const auto &[number, rank] : ranks_)
    if (rank.connection.open()) polled->push_back(rank.connection.polled());
}

void RendezvousSession::handle_events(const pollfd **at) {
  if (failure_ != ncclSuccess) return;
  bool news = false;
  for (auto &[number, rank] : ranks_) {
    if (!rank.connection.open()) continue;
    const short events = (*at)++->revents;
    if (events == 0) continue;
    if ((events & POLLOUT) != 0) rank.connection.flush();
    if ((events & ~POLLOUT) != 0) news = receive_from(rank) || news;
  }
  if (news) evaluate();
  check_timeout();
}

// Reads frames of a rank. Returns true if evaluate() must run.
bool RendezvousSession::receive_from(Rank &rank) {
  const bool there = rank.connection.read(sizeof(Frame) + kMostMessage);
  Bytes &received = rank.connection.received;
  bool news = !there;
  // An error may arrive at any time, a message only once per round.
  while (received.size() >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, received.data(), sizeof frame);
    std::string garbage;
    if (frame.size > kMostMessage) garbage = "sent an invalid message";
    if (garbage.empty() && received.size() < sizeof frame + frame.size) break;
    const auto begin = received.begin() + sizeof frame;
    const auto end = garbage.empty() ? begin + frame.size : received.end();
    if (frame.result == kGoodbye) {
      rank.done = true;
    } else {
      rank.sent = true;
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

void RendezvousSession::evaluate() {
  // If a rank fails and then leaves, its error is reported rather than its leaving.
  for (const auto &[number, rank] : ranks_) {
    if (!rank.sent || rank.frame.result == 0) continue;
    const std::string said(rank.message.begin(), rank.message.end());
    const auto code = static_cast<ncclResult_t>(rank.frame.result);
    return fail_all(code, number == kNoRank ? said : format("rank %u: ", number) + said, number);
  }
  for (const auto &[number, rank] : ranks_) {
    if (rank.connection.open() || (rank.done && !round_begun())) continue;
    if (number == kNoRank)
      fail_all(ncclInvalidUsage, "a caller that cannot be one of the ranks left without giving a reason");
    else
      fail_all(ncclRemoteError, format("rank %u left while the communicator was made", number), number);
    return;
  }
  const auto sent = [](const auto &entry) { return entry.second.sent; };
  if (ranks_.size() == nranks_ && std::all_of(ranks_.begin(), ranks_.end(), sent)) finish_round();
}

bool RendezvousSession::round_begun() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto &entry) { return entry.second.sent; });
}

void RendezvousSession::finish_round() {
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
    rank.sent = false;
    rank.connection.send({static_cast<uint32_t>(all->size()), 0}, all);
  }
}

int RendezvousSession::timeout() const {
  if (failure_ != ncclSuccess) return 1000;
  return nranks_ != 0 && (complete_ == 0 || round_begun()) ? kTickMs : -1;
}

bool RendezvousSession::over() const {
  if (failure_ != ncclSuccess && now_ms() - failed_ms_ > std::min(limit_ms_, kTellMs)) return true;
  return nranks_ != 0 && ranks_.size() == nranks_ &&
         std::none_of(ranks_.begin(), ranks_.end(), [](const auto &entry) { return entry.second.connection.open(); });
}

int64_t RendezvousSession::pending_failure_ms() const { return failure_ == ncclSuccess || over() ? -1 : now_ms() - failed_ms_; }

void RendezvousSession::check_timeout() {
  if (nranks_ == 0 || failure_ != ncclSuccess) return;
  const int64_t waited = now_ms() - round_ms_;
  if (complete_ == 0 && waited > limit_ms_) fail_all(ncclSystemError, ranks_.size() < nranks_ ? missing() : silent());
  // Between rounds no rank waits for the listener, so there is no limit.
  else if (round_begun() && waited > limit_ms_ + kGraceMs)
    fail_all(ncclSystemError, silent());
}

std::string RendezvousSession::missing() const {
  std::vector<uint32_t> absent;
  for (uint32_t r = 0; r < nranks_; ++r)
    if (ranks_.count(r) == 0) absent.push_back(r);
  return format("%zu of %u ranks did not join within %g s: %s; those that did are on %s", absent.size(), nranks_,
                static_cast<double>(limit_ms_) / 1e3, list_ranks(absent).c_str(), places(true).c_str());
}

// Returns the machines of ranks, with the ranks on each: of all ranks that have joined, because a missing machine is the
// place to look at, or only of those whose message of this round is missing.
std::string RendezvousSession::places(bool all) const {
  char own[256] = "";
  gethostname(own, sizeof own - 1);
  std::map<std::string, std::vector<uint32_t>> on;
  for (const auto &[number, rank] : ranks_) {
    if (number == kNoRank || (!all && rank.sent)) continue;
    const std::string from = rank.connection.from();
    on[from.empty() ? printable(own) : from].push_back(number);
  }
  std::string text;
  size_t told = 0;
  for (const auto &[place, ranks] : on) {
    if (told++ == kMostPlaces) return text + format(" and %zu more machines", on.size() - kMostPlaces);
    text += format("%s%s (%s)", text.empty() ? "" : ", ", place.c_str(), list_ranks(ranks).c_str());
  }
  return text;
}

std::string RendezvousSession::silent() const {
  std::vector<uint32_t> late;
  bool elsewhere = false;
  for (const auto &[number, rank] : ranks_) {
    if (rank.sent || number == kNoRank) continue;
    late.push_back(number);
    elsewhere |= !rank.connection.from().empty();
  }
  return too_late(late, "take the next step of the creation", static_cast<double>(limit_ms_) / 1e3) +
         (elsewhere ? " Out of reach, on " + places(false) + "?" : "");
}

}  // namespace collc
