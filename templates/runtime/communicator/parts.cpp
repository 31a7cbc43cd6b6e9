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

// The first byte of a message: the kind of the rest.
constexpr unsigned char kMessage = 1;
constexpr unsigned char kFailure = 2;  // an ncclResult_t and a zero-terminated message

// A rank's arguments to ncclCommSplit.
struct Wish {
  int color, key;
};

}  // namespace

// The number of the message.
uint64_t Communicator::post(unsigned char kind, const Bytes &message) {
  Bytes whole(1 + message.size(), kind);
  std::copy(message.begin(), message.end(), whole.begin() + 1);
  return control_->post(rank_, whole);
}

void Communicator::decline_part(const Status &reason) {
  if (!is_sound()) return;
  const auto code = static_cast<unsigned char>(reason.code());
  const std::string words = reason.text().substr(0, kMostMail - 3);
  Bytes message{code};
  message.insert(message.end(), words.begin(), words.end());
  message.push_back(0);
  post(kFailure, message);
}

Status Communicator::correspond_bytes(const std::vector<uint32_t> &members, const Bytes &message, std::vector<Bytes> *answers) {
  const uint64_t number = post(kMessage, message);
  const int64_t start = now_ms();
  answers->assign(members.size(), {});
  size_t missing = members.size();
  for (long nap_us = 20;; nap_us = std::min(2 * nap_us, 2000L)) {
    for (size_t i = 0; i < members.size(); ++i) {
      Bytes &answer = (*answers)[i];
      if (!answer.empty()) continue;
      COLLC_RETURN_IF_FAILED(control_->take(members[i], number, &answer));
      if (answer.empty()) continue;
      // A failure is reported without waiting for ranks that have not arrived.
      if (answer[0] == kFailure)
        return fail(static_cast<ncclResult_t>(answer[1]), "rank %u: %s", members[i],
                    reinterpret_cast<const char *>(&answer[2]));
      answer.erase(answer.begin());
      --missing;
    }
    if (missing == 0) return {};
    if (stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
    if (static_cast<double>(now_ms() - start) > bootstrap_seconds_ * 1e3) {
      std::vector<uint32_t> late;
      for (size_t i = 0; i < members.size(); ++i)
        if ((*answers)[i].empty()) late.push_back(members[i]);
      return fail(ncclSystemError, "%s", too_late(late, "take part", bootstrap_seconds_).c_str());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
  }
}

Status Communicator::part_of(Communicator &parent, const std::vector<uint32_t> &participants,
                             const std::vector<uint32_t> &members) {
  ncclUniqueId id = {};
  Status status;
  if (!members.empty() && members[0] == parent.rank_) status = make_unique_id(&id, backend().may_span_servers());
  if (!status.ok()) {
    parent.decline_part(status);
    return status;
  }
  std::vector<ncclUniqueId> ids;
  COLLC_RETURN_IF_FAILED(parent.correspond(participants, id, &ids));
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

Status Communicator::split(Communicator &parent, int color, int key) {
  std::vector<uint32_t> everyone(parent.nranks_), members;
  for (uint32_t r = 0; r < parent.nranks_; ++r) everyone[r] = r;
  std::vector<Wish> wishes;
  COLLC_RETURN_IF_FAILED(parent.correspond(everyone, Wish{color, key}, &wishes));
  std::vector<std::pair<int, uint32_t>> order;
  for (uint32_t r = 0; r < parent.nranks_; ++r)
    if (color >= 0 && wishes[r].color == color) order.emplace_back(wishes[r].key, r);
  std::sort(order.begin(), order.end());
  for (const auto &entry : order) members.push_back(entry.second);
  return part_of(parent, everyone, members);
}

Status Communicator::shrink(Communicator &parent, const std::vector<uint32_t> &excluded) {
  std::vector<uint32_t> members;
  for (uint32_t r = 0; r < parent.nranks_; ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) members.push_back(r);
  return part_of(parent, members, members);
}

}  // namespace collc
