// The functions of the NCCL API that create communicators. An error on one rank is reported to the other ranks, which may be
// waiting for it.
#include <algorithm>
#include <vector>

#include "api/api.h"
#include "base/environment.h"
#include "bootstrap/make_id.h"
#include "bootstrap/rendezvous.h"
#include "plan/embedded_tables.h"

using namespace collc;

namespace {

constexpr double kPatience = 5;  // seconds; limit of the wait for the turn of a part that fails or is the real NCCL's

// Checks and reads the arguments of a rank of a new communicator.
Status read_rank(const ncclComm_t *handle, int nranks, int rank, const ncclConfig_t *given, const int *device, Config *config,
                 int *current) {
  if (handle == nullptr) return fail(ncclInvalidArgument, "the place for the communicator is NULL");
  if (nranks < 1 || nranks > 1 << 20) return fail(ncclInvalidArgument, "%d ranks are not possible", nranks);
  if (rank < 0 || rank >= nranks) return fail(ncclInvalidArgument, "rank %d is not in 0..%d", rank, nranks - 1);
  COLLC_RETURN_IF_FAILED(read_config(given, config));
  if (device == nullptr) return backend().current_device(current);
  *current = *device;
  return {};
}

// Reports to the ranks of an id that this rank does not come, because they wait for it.
void decline_rank(const ncclUniqueId &id, int nranks, int rank, const Status &reason) {
  if (nranks >= 1 && rank >= 0 && rank < nranks)
    decline(id, static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank), reason);
  else
    decline(id, 1, kNoRank, reason);
}

Status create_rank(ncclComm_t *handle, int nranks, const ncclUniqueId &id, int rank, const int *device,
                   const ncclConfig_t *given) {
  if (handle != nullptr) *handle = nullptr;
  Config config;
  int current = 0;
  const Status fits = read_rank(handle, nranks, rank, given, device, &config, &current);
  if (!fits.ok()) {
    if (is_our_id(id)) decline_rank(id, nranks, rank, fits);
    return fits;
  }
  const auto communicator = std::make_shared<Communicator>(config, current);
  if (is_our_id(id)) {
    const auto join = [id, nranks, rank](Communicator *made) {
      return made->join(id, static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank));
    };
    const auto excuse = [id, nranks, rank](const Status &reason) { decline_rank(id, nranks, rank, reason); };
    return create(communicator, {join, excuse}, handle);
  }
  // The real NCCL made the id, for a process that loads collc or for one that does not.
  if (!have_real()) return fail(ncclInvalidArgument, "the unique id was not made by this library's ncclGetUniqueId");
  const auto forward = [id, nranks, rank](Communicator *made) -> Status {
    ncclComm_t real = nullptr;
    const ncclResult_t result =
        call_real(pncclCommInitRankConfig, "ncclCommInitRankConfig", &real, nranks, id, rank, made->config_for_real());
    if (result != ncclSuccess && result != ncclInProgress) return fail(result, "the real NCCL could not make the communicator");
    made->wrap(real, static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank));
    return {};
  };
  return create(communicator, {forward, [](const Status &) {}}, handle);
}

// Checks and reads the arguments of a rank of a part of a communicator.
Status read_part(ncclComm_t *handle, const ncclConfig_t *given, bool absent, Config *config) {
  if (handle == nullptr) return fail(ncclInvalidArgument, "the place for the communicator is NULL");
  *handle = nullptr;
  if (given != nullptr) COLLC_RETURN_IF_FAILED(read_config(given, config));
  if (absent) config->blocking = true;
  return {};
}

Status read_excluded(const Communicator &parent, const int *excluded, int count, std::vector<uint32_t> *out) {
  if (count < 1 || excluded == nullptr) return fail(ncclInvalidArgument, "no rank is excluded");
  // If the list has a mistake, the error goes to all ranks that it does not exclude correctly, at once.
  Status status;
  for (int i = 0; i < count; ++i) {
    const Status one = check_rank(parent, "excluded rank", excluded[i]);
    if (one.ok() && static_cast<uint32_t>(excluded[i]) != parent.rank()) out->push_back(static_cast<uint32_t>(excluded[i]));
    if (one.ok() && static_cast<uint32_t>(excluded[i]) == parent.rank() && status.ok())
      status = fail(ncclInvalidUsage, "rank %u is excluded and must not call it", parent.rank());
    if (!one.ok() && status.ok()) status = one;
  }
  return status;
}

// Split, shrink and grow: creates a communicator from `parent`, by collc or by the real NCCL. A null config means the
// parent's. A rank that takes part without getting a communicator (`absent`) always waits for the answers of the others,
// because it has no handle to ask later. `participants`: the ranks of the parent that call this. `checked`: the result of
// earlier checks of the arguments.
Status derive(const CommunicatorPtr &parent, const std::vector<uint32_t> &participants, const ncclConfig_t *given,
              ncclComm_t *handle, bool absent, Status checked, const std::function<Status(Communicator *, Turn &)> &ours,
              const std::function<ncclResult_t(ncclComm_t, ncclComm_t *, ncclConfig_t *)> &theirs) {
  const auto turn = std::make_shared<Turn>(parent->turns());
  const auto excuse = [parent, participants, turn](const Status &reason) {
    if (!in_group()) turn->wait(kPatience);  // the communicators before this one in a group wait for the end of the group
    parent->decline_part(reason, participants);
    turn->pass();
  };
  Config config = parent->config();
  if (checked.ok()) checked = read_part(handle, given, absent, &config);
  if (!checked.ok()) {
    excuse(checked);
    return checked;
  }
  const auto communicator = std::make_shared<Communicator>(config, parent->device());
  const auto make = [turn, ours](Communicator *made) {
    const auto pass = [](Turn *held) { held->pass(); };
    const std::unique_ptr<Turn, decltype(pass)> passed_in_any_case(turn.get(), pass);
    return ours(made, *turn);
  };
  if (parent->real() == nullptr) return create(communicator, {make, excuse}, handle);
  const auto forward = [parent, turn, theirs](Communicator *made) -> Status {
    turn->wait(kPatience);
    ncclComm_t real = nullptr;
    const ncclResult_t result = theirs(parent->real(), &real, made->config_for_real());
    turn->pass();
    if (result != ncclSuccess && result != ncclInProgress) return fail(result, "the real NCCL could not make the communicator");
    int nranks = 0, rank = 0;
    if (real != nullptr) {
      call_real(pncclCommCount, "ncclCommCount", real, &nranks);
      call_real(pncclCommUserRank, "ncclCommUserRank", real, &rank);
    }
    made->wrap(real, static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank));
    return {};
  };
  return create(communicator, {forward, excuse}, handle);
}

// Joins a growing communicator of the real NCCL as a new rank.
Status join_theirs(ncclComm_t *handle, int nranks, const ncclUniqueId &id, int rank, const ncclConfig_t *given) {
  Config config;
  int device = 0;
  if (handle != nullptr) *handle = nullptr;
  COLLC_RETURN_IF_FAILED(read_rank(handle, nranks, rank, given, nullptr, &config, &device));
  if (!have_real()) return fail(ncclInvalidArgument, "the unique id was not made by this library's ncclCommGetUniqueId");
  const auto join = [id, nranks, rank](Communicator *made) -> Status {
    ncclComm_t real = nullptr;
    const ncclResult_t result =
        call_real(pncclCommGrow, "ncclCommGrow", nullptr, nranks, &id, rank, &real, made->config_for_real());
    if (result != ncclSuccess && result != ncclInProgress) return fail(result, "the real NCCL could not grow the communicator");
    made->wrap(real, static_cast<uint32_t>(nranks), static_cast<uint32_t>(rank));
    return {};
  };
  return create(std::make_shared<Communicator>(config, device), {join, [](const Status &) {}}, handle);
}

}  // namespace

extern "C" {

ncclResult_t pncclGetUniqueId(ncclUniqueId *id) {
  return guarded("ncclGetUniqueId", [&]() -> Status {
    if (id == nullptr) return fail(ncclInvalidArgument, "the id is NULL");
    if (!is_set("COLLC_DISABLE")) {
      COLLC_RETURN_IF_FAILED(check_tables());
      return make_unique_id(id, backend().facts().may_span_servers);
    }
    return forwarded(call_real(pncclGetUniqueId, "ncclGetUniqueId", id));
  });
}
COLLC_ALIAS(ncclResult_t, GetUniqueId, (ncclUniqueId *));

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return guarded("ncclCommInitRankConfig", [&] { return note_failure(create_rank(comm, nranks, id, rank, nullptr, config)); });
}
COLLC_ALIAS(ncclResult_t, CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return guarded("ncclCommInitRank", [&] { return note_failure(create_rank(comm, nranks, id, rank, nullptr, nullptr)); });
}
COLLC_ALIAS(ncclResult_t, CommInitRank, (ncclComm_t *, int, ncclUniqueId, int));

ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                       ncclConfig_t *config) {
  return guarded("ncclCommInitRankScalable", [&]() -> Status {
    if (ids == nullptr || nids < 1)
      return note_failure(fail(ncclInvalidArgument, "%d unique ids are not possible, or their address is NULL", nids));
    // One listener is enough, the first id's.
    return note_failure(create_rank(comm, nranks, ids[0], rank, nullptr, config));
  });
}
COLLC_ALIAS(ncclResult_t, CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *));

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist) {
  return guarded("ncclCommInitAll", [&]() -> Status {
    if (comms == nullptr || ndev < 1)
      return note_failure(fail(ncclInvalidArgument, "%d communicators are not possible, or their address is NULL", ndev));
    // A device that does not exist must fail now; the ranks on other devices would wait for it.
    int before = 0;
    COLLC_RETURN_IF_FAILED(backend().current_device(&before));
    Status usable;
    for (int i = 0; i < ndev && usable.ok(); ++i) usable = backend().use_device(devlist != nullptr ? devlist[i] : i);
    COLLC_RETURN_IF_FAILED(backend().use_device(before));
    if (!usable.ok()) return note_failure(usable);
    ncclUniqueId id;
    COLLC_RETURN_IF_FAILED(make_unique_id(&id, backend().facts().may_span_servers));
    group_start();
    for (int i = 0; i < ndev; ++i) {
      const int device = devlist != nullptr ? devlist[i] : i;
      note_failure(create_rank(&comms[i], ndev, id, i, &device, nullptr)).ok();  // the group returns the error
    }
    const Status ended = group_end();
    if (ended.ok()) return ended;
    for (int i = 0; i < ndev; ++i) {
      CommunicatorPtr removed;
      if (comms[i] != nullptr && remove_communicator(comms[i], &removed).ok()) comms[i] = nullptr;
    }
    return ended;
  });
}
COLLC_ALIAS(ncclResult_t, CommInitAll, (ncclComm_t *, int, const int *));

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  return with_communicator("ncclCommSplit", comm, [&](const CommunicatorPtr &parent) -> Status {
    if (!parent->revoked()) COLLC_RETURN_IF_FAILED(parent->state());
    Owner owner;
    COLLC_RETURN_IF_FAILED(note_failure(owner.take(*parent)));
    Status checked;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) checked = fail(ncclInvalidArgument, "color %d is negative", color);
    return note_failure(derive(
        parent, parent->all_but({}), config, newcomm, color < 0, checked,
        [parent, color, key](Communicator *made, Turn &turn) { return made->split(*parent, turn, color, key); },
        [color, key](ncclComm_t real, ncclComm_t *made, ncclConfig_t *copy) {
          return call_real(pncclCommSplit, "ncclCommSplit", real, color, key, made, copy);
        }));
  });
}
COLLC_ALIAS(ncclResult_t, CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *));

ncclResult_t pncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config, int flags) {
  return with_communicator("ncclCommShrink", comm, [&](const CommunicatorPtr &parent) -> Status {
    // With NCCL_SHRINK_ABORT the parent may be broken, and its calls end; without it, the parent must be sound.
    const bool aborts = flags != NCCL_SHRINK_DEFAULT && parent->real() == nullptr;
    if (aborts && parent->backend_rank() == nullptr) return fail(ncclInvalidUsage, "the communicator was never created");
    if (flags == NCCL_SHRINK_DEFAULT && !parent->revoked()) COLLC_RETURN_IF_FAILED(parent->state());
    Owner owner;  // not with NCCL_SHRINK_ABORT, which ends the calls of other threads
    if (!aborts) COLLC_RETURN_IF_FAILED(note_failure(owner.take(*parent)));
    std::vector<uint32_t> out;
    const Status checked = read_excluded(*parent, excluded, count, &out);
    if (aborts && checked.ok() && !parent->revoked()) parent->give_way();
    const std::vector<int> copy(out.begin(), out.end());
    return note_failure(derive(
        parent, parent->all_but(out), config, newcomm, false, checked,
        [parent, out](Communicator *made, Turn &turn) { return made->shrink(*parent, turn, out); },
        [copy, flags](ncclComm_t real, ncclComm_t *made, ncclConfig_t *given) {
          return call_real(pncclCommShrink, "ncclCommShrink", real, const_cast<int *>(copy.data()),
                           static_cast<int>(copy.size()), made, given, flags);
        }));
  });
}
COLLC_ALIAS(ncclResult_t, CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int));

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id) {
  return with_communicator("ncclCommGetUniqueId", comm, [&](const CommunicatorPtr &found) -> Status {
    if (found->real() != nullptr) return forwarded(call_real(pncclCommGetUniqueId, "ncclCommGetUniqueId", found->real(), id));
    if (id == nullptr) return fail(ncclInvalidArgument, "the id is NULL");
    COLLC_RETURN_IF_FAILED(found->state());
    return make_unique_id(id, backend().facts().may_span_servers);
  });
}
COLLC_ALIAS(ncclResult_t, CommGetUniqueId, (ncclComm_t, ncclUniqueId *));

ncclResult_t pncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                           ncclConfig_t *config) {
  if (comm == nullptr)
    return guarded("ncclCommGrow", [&]() -> Status {
      if (id == nullptr) return note_failure(fail(ncclInvalidArgument, "a rank that joins has no id"));
      return note_failure(is_our_id(*id) ? create_rank(newcomm, nranks, *id, rank, nullptr, config)
                                         : join_theirs(newcomm, nranks, *id, rank, config));
    });
  return with_communicator("ncclCommGrow", comm, [&](const CommunicatorPtr &parent) -> Status {
    COLLC_RETURN_IF_FAILED(parent->state());
    Owner owner;
    COLLC_RETURN_IF_FAILED(note_failure(owner.take(*parent)));
    Status checked;
    if (rank != -1) checked = fail(ncclInvalidArgument, "a rank of the communicator has to give -1, not rank %d", rank);
    if (nranks <= static_cast<int>(parent->nranks()))
      checked = fail(ncclInvalidArgument, "%d ranks are not more than %u", nranks, parent->nranks());
    const bool is_root = id != nullptr;
    const ncclUniqueId copy = is_root ? *id : ncclUniqueId{};
    if (is_root && parent->real() == nullptr && !is_our_id(copy))
      checked = fail(ncclInvalidArgument, "the unique id was not made by ncclCommGetUniqueId");
    return note_failure(derive(
        parent, parent->all_but({}), config, newcomm, false, checked,
        [parent, nranks, is_root, copy](Communicator *made, Turn &turn) {
          return made->grow(*parent, turn, static_cast<uint32_t>(nranks), is_root ? &copy : nullptr);
        },
        [nranks, is_root, copy](ncclComm_t real, ncclComm_t *made, ncclConfig_t *given) {
          return call_real(pncclCommGrow, "ncclCommGrow", real, nranks, is_root ? &copy : nullptr, -1, made, given);
        }));
  });
}
COLLC_ALIAS(ncclResult_t, CommGrow, (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *));

}  // extern "C"
