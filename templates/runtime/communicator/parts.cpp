// Communicators made of ranks of a parent: they exchange messages through its shared memory, then join by an id.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "communicator/communicator.h"
#include "bootstrap/make_id.h"
#include "bootstrap/rendezvous.h"

namespace collc {
namespace {

// Kinds of messages.
constexpr uint64_t kMessage = 1;
constexpr uint64_t kFailure = 2;  // an ncclResult_t and a zero-terminated message
constexpr uint64_t kRead = 3;     // this rank has the messages of all others; of the same round

uint64_t hash_of(const std::vector<uint32_t> &ranks) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint32_t rank : ranks) hash = (hash ^ rank) * 0x100000001b3;
  return hash;
}

// A rank's arguments to ncclCommSplit.
struct Wish {
  int color, key;
};

}  // namespace

Communicator::MailHead Communicator::post(uint64_t kind, const std::vector<uint32_t> &members, const Bytes &message) {
  const uint64_t hash = hash_of(members);
  uint64_t &round = rounds_[hash];
  if (kind != kRead) ++round;
  const MailHead head{kind, hash, round};
  Bytes whole(sizeof head + message.size());
  std::memcpy(whole.data(), &head, sizeof head);
  std::copy(message.begin(), message.end(), whole.begin() + sizeof head);
  control_->post(rank_, whole);
  return head;
}

void Communicator::decline_part(const Status &reason, const std::vector<uint32_t> &participants) {
  // Also one that is broken: a shrink may be what saves the others.
  if (!is_sound() && !revoked() && !(rank_backend_ != nullptr && control_->aborted())) return;
  const auto code = static_cast<unsigned char>(reason.code());
  const std::string words = reason.text().substr(0, kMostMail - sizeof(MailHead) - 2);
  Bytes message{code};
  message.insert(message.end(), words.begin(), words.end());
  message.push_back(0);
  post(kFailure, participants, message);
}

Status Communicator::hear(uint32_t member, const MailHead &head, Bytes *answer, uint64_t *answered) const {
  const uint64_t newest = control_->newest_mail(member);
  bool went_on = false;
  for (uint64_t number = newest; number > 0 && number + kKeptMail > newest; --number) {
    Bytes message;
    COLLC_RETURN_IF_FAILED(control_->take(member, number, &message));
    if (message.empty()) break;
    MailHead found;
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
  // What came meanwhile is found the next time.
  if (!control_->alive(member) && control_->newest_mail(member) == newest)
    return fail(ncclRemoteError, "rank %u has died", member);
  return {};
}

Status Communicator::wait_for_turn(Turn &turn, const Communicator &parent) const {
  for (const int64_t start = now_ms(); !turn.wait(0.02);) {
    if (stopped_.load() || parent.stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
    if (static_cast<double>(now_ms() - start) > parent.bootstrap_seconds_ * 1e3)
      return fail(ncclSystemError, "the part of the communicator before this one is not made after %g s",
                  parent.bootstrap_seconds_);
  }
  return {};
}

Status Communicator::correspond_bytes(const Communicator &made, const std::vector<uint32_t> &members, const Bytes &message,
                                      std::vector<Bytes> *answers) {
  const MailHead head = post(kMessage, members, message);
  const int64_t start = now_ms();
  answers->assign(members.size(), {});
  std::vector<uint64_t> answered(members.size());
  size_t missing = members.size();
  for (long nap_us = 20;; nap_us = std::min(2 * nap_us, 2000L)) {
    for (size_t i = 0; i < members.size(); ++i) {
      Bytes &answer = (*answers)[i];
      if (!answer.empty()) continue;
      // A failure is reported without waiting for ranks that have not arrived.
      COLLC_RETURN_IF_FAILED(hear(members[i], head, &answer, &answered[i]));
      missing -= answer.empty() ? 0 : 1;
    }
    if (missing == 0) {
      post(kRead, members, {});
      return wait_for_readers(members, answered, start);
    }
    if (stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
    if (made.stopped_.load()) {
      decline_part(fail(ncclRemoteError, "ncclCommAbort was called"), members);
      return fail(ncclInvalidUsage, "the communicator was aborted");
    }
    if (static_cast<double>(now_ms() - start) > bootstrap_seconds_ * 1e3) {
      std::vector<uint32_t> late;
      for (size_t i = 0; i < members.size(); ++i)
        if ((*answers)[i].empty()) late.push_back(members[i]);
      return fail(ncclSystemError, "%s", too_late(late, "take part", bootstrap_seconds_).c_str());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
  }
}

// Whatever a rank posts after its answer says that it has read: what it has posted in between may be kept no more.
Status Communicator::wait_for_readers(const std::vector<uint32_t> &members, const std::vector<uint64_t> &answered,
                                      int64_t start) const {
  for (long nap_us = 20;; nap_us = std::min(2 * nap_us, 2000L)) {
    std::vector<uint32_t> late;
    for (size_t i = 0; i < members.size(); ++i)
      if (control_->newest_mail(members[i]) == answered[i] && control_->alive(members[i]) && !control_->has_left(members[i]))
        late.push_back(members[i]);
    if (late.empty()) return {};
    if (stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
    if (static_cast<double>(now_ms() - start) > bootstrap_seconds_ * 1e3)
      return fail(ncclSystemError, "%s", too_late(late, "take part", bootstrap_seconds_).c_str());
    std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
  }
}

Status Communicator::part_of(Communicator &parent, Turn &turn, const std::vector<uint32_t> &participants,
                             const std::vector<uint32_t> &members) {
  ncclUniqueId id = {};
  Status status;
  if (!members.empty() && members[0] == parent.rank_) status = make_unique_id(&id, backend().facts().may_span_servers);
  if (!status.ok()) {
    parent.decline_part(status, participants);
    return status;
  }
  std::vector<ncclUniqueId> ids;
  COLLC_RETURN_IF_FAILED(parent.correspond(*this, participants, id, &ids));
  turn.pass();
  if (members.empty()) {
    absent_ = true;
    return {};
  }
  const auto first = std::find(participants.begin(), participants.end(), members[0]) - participants.begin();
  id = ids[static_cast<size_t>(first)];
  const auto place_of_mine = std::find(members.begin(), members.end(), parent.rank_) - members.begin();
  std::vector<uint32_t> gpus;
  if (parent.gpus_.size() == parent.nranks_)
    for (const uint32_t member : members) gpus.push_back(parent.gpus_[member]);
  return join(id, static_cast<uint32_t>(members.size()), static_cast<uint32_t>(place_of_mine), gpus);
}

Status Communicator::split(Communicator &parent, Turn &turn, int color, int key) {
  COLLC_RETURN_IF_FAILED(wait_for_turn(turn, parent));
  const std::vector<uint32_t> everyone = parent.all_but({});
  std::vector<uint32_t> members;
  std::vector<Wish> wishes;
  COLLC_RETURN_IF_FAILED(parent.correspond(*this, everyone, Wish{color, key}, &wishes));
  std::vector<std::pair<int, uint32_t>> order;
  for (uint32_t r = 0; r < parent.nranks_; ++r)
    if (color >= 0 && wishes[r].color == color) order.emplace_back(wishes[r].key, r);
  std::sort(order.begin(), order.end());
  for (const auto &entry : order) members.push_back(entry.second);
  return part_of(parent, turn, everyone, members);
}

std::vector<uint32_t> Communicator::all_but(const std::vector<uint32_t> &excluded) const {
  std::vector<uint32_t> members;
  for (uint32_t r = 0; r < nranks_; ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) members.push_back(r);
  return members;
}

Status Communicator::shrink(Communicator &parent, Turn &turn, const std::vector<uint32_t> &excluded) {
  COLLC_RETURN_IF_FAILED(wait_for_turn(turn, parent));
  const std::vector<uint32_t> members = parent.all_but(excluded);
  return part_of(parent, turn, members, members);
}

// One of the ranks that are there already has the id, with which all ranks join.
Status Communicator::grow(Communicator &parent, Turn &turn, uint32_t nranks, const ncclUniqueId *id) {
  COLLC_RETURN_IF_FAILED(wait_for_turn(turn, parent));
  struct Offer {
    uint32_t is_there;
    ncclUniqueId id;
  };
  const Offer mine{id != nullptr, id != nullptr ? *id : ncclUniqueId{}};
  std::vector<Offer> offers;
  COLLC_RETURN_IF_FAILED(parent.correspond(*this, parent.all_but({}), mine, &offers));
  turn.pass();
  const auto has_id = [](const Offer &offer) { return offer.is_there != 0; };
  const auto root = std::find_if(offers.begin(), offers.end(), has_id);
  if (std::count_if(offers.begin(), offers.end(), has_id) != 1)
    return fail(ncclInvalidUsage, "%s ranks have given an id; one has to", root == offers.end() ? "no" : "several");
  return join(root->id, nranks, parent.rank_);
}

}  // namespace collc
