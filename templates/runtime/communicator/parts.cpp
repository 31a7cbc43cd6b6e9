// Communicators made of ranks of a parent: they exchange messages through its shared memory, then join by an id.
#include <algorithm>

#include "communicator/communicator.h"
#include "bootstrap/make_id.h"
#include "bootstrap/rendezvous.h"

namespace collc {
namespace {

// A rank's arguments to ncclCommSplit.
struct Wish {
  int color, key;
};

}  // namespace

void Communicator::decline_part(const Status &reason, const std::vector<uint32_t> &participants) {
  // A broken communicator also declines, because a shrink may save the others.
  if (!is_sound() && !revoked() && !(rank_backend_ != nullptr && control_->aborted())) return;
  mail_.decline(reason, participants);
}

Status Communicator::wait_for_turn(Turn &turn, const Communicator &parent) const {
  for (const int64_t start = now_ms(); !turn.wait(0.02);) {
    if (stopped_.load() || parent.stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
    if (static_cast<double>(now_ms() - start) > parent.mail_.seconds() * 1e3)
      return fail(ncclSystemError, "the part of the communicator before this one is not made after %g s",
                  parent.mail_.seconds());
  }
  return {};
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
  COLLC_RETURN_IF_FAILED(parent.mail_.exchange_among(participants, stopped_, id, &ids));
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
  COLLC_RETURN_IF_FAILED(parent.mail_.exchange_among(everyone, stopped_, Wish{color, key}, &wishes));
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

// Exactly one of the old ranks has the id. All ranks, old and new, join by it.
Status Communicator::grow(Communicator &parent, Turn &turn, uint32_t nranks, const ncclUniqueId *id) {
  COLLC_RETURN_IF_FAILED(wait_for_turn(turn, parent));
  struct Offer {
    uint32_t is_there;
    ncclUniqueId id;
  };
  const Offer mine{id != nullptr, id != nullptr ? *id : ncclUniqueId{}};
  std::vector<Offer> offers;
  COLLC_RETURN_IF_FAILED(parent.mail_.exchange_among(parent.all_but({}), stopped_, mine, &offers));
  turn.pass();
  const auto has_id = [](const Offer &offer) { return offer.is_there != 0; };
  const auto root = std::find_if(offers.begin(), offers.end(), has_id);
  if (std::count_if(offers.begin(), offers.end(), has_id) != 1)
    return fail(ncclInvalidUsage, "%s ranks have given an id; one has to", root == offers.end() ? "no" : "several");
  return join(root->id, nranks, parent.rank_);
}

}  // namespace collc
