#include "communicator/part_mail.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "bootstrap/rendezvous.h"

namespace collc {
namespace {

// Kinds of messages.
constexpr uint64_t kMessage = 1;
constexpr uint64_t kFailure = 2;  // an ncclResult_t and a zero-terminated message
constexpr uint64_t kRead = 3;     // this rank has the messages of all others of the same round

uint64_t hash_of(const std::vector<uint32_t> &ranks) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint32_t rank : ranks) hash = (hash ^ rank) * 0x100000001b3;
  return hash;
}

}  // namespace

PartMail::Head PartMail::post(uint64_t kind, const std::vector<uint32_t> &members, const Bytes &message) {
  const uint64_t hash = hash_of(members);
  uint64_t &round = rounds_[hash];
  if (kind != kRead) ++round;
  const Head head{kind, hash, round};
  Bytes whole(sizeof head + message.size());
  std::memcpy(whole.data(), &head, sizeof head);
  std::copy(message.begin(), message.end(), whole.begin() + sizeof head);
  control_->post(rank_, whole);
  return head;
}

void PartMail::decline(const Status &reason, const std::vector<uint32_t> &members) {
  const auto code = static_cast<unsigned char>(reason.code());
  const std::string words = reason.text().substr(0, kMostMail - sizeof(Head) - 2);
  Bytes message{code};
  message.insert(message.end(), words.begin(), words.end());
  message.push_back(0);
  post(kFailure, members, message);
}

// Reads the message of a member with this head and its number, or returns its failure; `answer` stays empty if it has not come.
Status PartMail::hear(uint32_t member, const Head &head, Bytes *answer, uint64_t *answered) const {
  const uint64_t newest = control_->newest_mail(member);
  bool went_on = false;
  for (uint64_t number = newest; number > 0 && number + kKeptMail > newest; --number) {
    Bytes message;
    COLLC_RETURN_IF_FAILED(control_->take(member, number, &message));
    if (message.empty()) break;
    Head found;
    std::memcpy(&found, message.data(), sizeof found);
    if (found.members != head.members || found.round < head.round || found.kind == kRead) continue;
    if (found.round > head.round) {
      went_on = true;
      continue;
    }
    if (found.kind == kFailure)
      return fail(static_cast<ncclResult_t>(message[sizeof found]), "rank %u: %s", member,
                  reinterpret_cast<const char *>(&message[sizeof found + 1]));
    answer->assign(message.begin() + sizeof found, message.end());
    *answered = number;
    return {};
  }
  // Only a rank that has seen a failure corresponds again before all have read.
  if (went_on) return fail(ncclRemoteError, "rank %u has failed to make a part of the communicator, and went on", member);
  // A message that came meanwhile is found the next time.
  if (!control_->alive(member) && control_->newest_mail(member) == newest)
    return fail(ncclRemoteError, "rank %u has died", member);
  return {};
}

// Returns an error that names the late ranks if the time for creation is over, or the communicator is aborted.
Status PartMail::check_time(int64_t start, const std::vector<uint32_t> &late) const {
  if (aborted_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
  if (static_cast<double>(now_ms() - start) <= seconds_ * 1e3) return {};
  return fail(ncclSystemError, "%s", too_late(late, "take part", seconds_).c_str());
}

Status PartMail::exchange_bytes(const std::vector<uint32_t> &members, const std::atomic<bool> &part_aborted,
                                const Bytes &message, std::vector<Bytes> *answers) {
  const Head head = post(kMessage, members, message);
  const int64_t start = now_ms();
  answers->assign(members.size(), {});
  std::vector<uint64_t> answered(members.size());
  for (long nap_us = 20;; nap_us = std::min(2 * nap_us, 2000L)) {
    std::vector<uint32_t> late;
    for (size_t i = 0; i < members.size(); ++i) {
      Bytes &answer = (*answers)[i];
      if (!answer.empty()) continue;
      // A failure is reported without waiting for ranks that have not arrived.
      COLLC_RETURN_IF_FAILED(hear(members[i], head, &answer, &answered[i]));
      if (answer.empty()) late.push_back(members[i]);
    }
    if (late.empty()) {
      post(kRead, members, {});
      return wait_for_readers(members, answered, start);
    }
    if (!aborted_.load() && part_aborted.load()) {
      decline(fail(ncclRemoteError, "ncclCommAbort was called"), members);
      return fail(ncclInvalidUsage, "the communicator was aborted");
    }
    COLLC_RETURN_IF_FAILED(check_time(start, late));
    std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
  }
}

// Waits until all members, whose answers had these numbers, have read all answers. Any message that a member posts after its
// answer shows that it has read: messages that it has posted in between may no longer be kept.
Status PartMail::wait_for_readers(const std::vector<uint32_t> &members, const std::vector<uint64_t> &answered,
                                  int64_t start) const {
  for (long nap_us = 20;; nap_us = std::min(2 * nap_us, 2000L)) {
    std::vector<uint32_t> late;
    for (size_t i = 0; i < members.size(); ++i)
      if (control_->newest_mail(members[i]) == answered[i] && control_->alive(members[i]) && !control_->has_left(members[i]))
        late.push_back(members[i]);
    if (late.empty()) return {};
    COLLC_RETURN_IF_FAILED(check_time(start, late));
    std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
  }
}

}  // namespace collc
