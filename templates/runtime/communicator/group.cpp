#include "communicator/group.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "communicator/profiler.h"
#include "communicator/ranges.h"
#include "communicator/real_nccl.h"

namespace collc {
namespace {

struct PendingCall {
  CommunicatorPtr communicator;
  Call call;
};

struct PendingCreation {
  CommunicatorPtr communicator;
  Origin origin;
  ncclComm_t *handle;
  Status status;
};

struct Group {
  int depth = 1;
  bool real_open = false;
  Status failure;
  std::vector<PendingCall> calls;
  std::deque<PendingCreation> creations;  // stable addresses: threads hold them
  std::vector<CommunicatorPtr> finalized;
};

thread_local Group *group = nullptr;  // the open one; a pointer, which no call has to construct

// Frees the group of a thread that ends before ncclGroupEnd.
struct LeftOpen {
  ~LeftOpen() { delete std::exchange(group, nullptr); }
};

// Makes this thread the owner of a communicator, if it is not.
Status own(Communicator &communicator, std::vector<Owner> *owners) {
  const auto is_owner = [&](const Owner &owner) { return owner.owns(communicator); };
  if (std::any_of(owners->begin(), owners->end(), is_owner)) return {};
  owners->emplace_back();
  return owners->back().take(communicator);
}

Status run_calls(std::vector<PendingCall> &calls) {
  std::vector<Submission> batch;
  std::vector<Owner> owners;
  Status first;
  for (const PendingCall &pending : calls) COLLC_RETURN_IF_FAILED(own(*pending.communicator, &owners));
  for (PendingCall &pending : calls) {
    const Status ready = pending.communicator->prepare(&pending.call);
    if (first.ok()) first = ready;
  }
  // A call that cannot begin must not leave the others of the group half done, or counted, on this rank only.
  if (!first.ok()) return first;
  batch.reserve(calls.size());
  for (const PendingCall &pending : calls) batch.push_back({pending.communicator->backend_rank(), pending.call, {}});
  COLLC_RETURN_IF_FAILED(backend().admit(batch));
  for (size_t i = 0; i < batch.size(); ++i) calls[i].communicator->count(&batch[i].call);
  const CallRange range(batch[0].call, batch.size());
  CallEvents events;
  for (size_t i = 0; i < batch.size(); ++i) events.begin(calls[i].communicator->profile(), *batch[i].rank, batch[i].call);
  backend().run(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].status.ok()) continue;
    calls[i].communicator->set_failed(batch[i].status);
    if (first.ok()) first = batch[i].status;
  }
  return first;
}

// All of them begin before this thread waits for one: their calls may wait for each other.
Status run_finalizations(const std::vector<CommunicatorPtr> &communicators) {
  Status first;
  const auto keep = [&first](const Status &status) {
    if (first.ok() || first.code() == ncclInProgress) first = status.ok() ? first : status;
  };
  std::vector<Owner> owners;
  for (const CommunicatorPtr &communicator : communicators) COLLC_RETURN_IF_FAILED(own(*communicator, &owners));
  for (const CommunicatorPtr &communicator : communicators) keep(communicator->begin_to_finalize());
  for (const CommunicatorPtr &communicator : communicators)
    if (communicator->finalized())
      keep(communicator->config().blocking ? communicator->wait_for_calls() : communicator->state());
  return first;
}

void give_up(const PendingCreation &creation) {
  CommunicatorPtr removed;
  if (remove_communicator(*creation.handle, &removed).ok()) *creation.handle = nullptr;
}

Status run_creations(std::deque<PendingCreation> &creations) {
  std::vector<std::thread> threads;
  threads.reserve(creations.size());
  Status first;
  for (PendingCreation &creation : creations) {
    if (!creation.communicator->config().blocking) {
      creation.status = creation.communicator->initialize_in_background(creation.origin);
      continue;
    }
    const auto run = [&creation] { creation.status = creation.communicator->initialize(creation.origin); };
    if (creations.size() == 1) {
      run();
      continue;
    }
    std::thread thread;
    const Status started = start_thread(run, &thread);
    if (started.ok()) {
      threads.push_back(std::move(thread));
      continue;
    }
    creation.status = started;
    creation.origin.decline(started);
  }
  for (std::thread &thread : threads) thread.join();
  for (const PendingCreation &creation : creations) {
    if (creation.communicator->absent()) give_up(creation);
    if (creation.status.ok()) continue;
    if (creation.status.code() != ncclInProgress) give_up(creation);
    if (first.ok() || first.code() == ncclInProgress) first = creation.status;
  }
  return first;
}

}  // namespace

void group_start() {
  if (group != nullptr) {
    ++group->depth;
    return;
  }
  group = new Group;
  static thread_local LeftOpen left_open;
}

Status group_end() {
  if (group == nullptr) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group->depth > 0) return {};
  const std::unique_ptr<Group> owner(std::exchange(group, nullptr));
  Group &ended = *owner;
  Status real;
  if (ended.real_open) {
    const ncclResult_t result = call_real(pncclGroupEnd, "ncclGroupEnd");
    if (result != ncclSuccess) real = Status(result, "the real NCCL's ncclGroupEnd failed");
  }
  if (!ended.failure.ok()) {
    for (const PendingCreation &creation : ended.creations) {
      creation.origin.decline(ended.failure);
      give_up(creation);
    }
    return ended.failure;
  }
  Status status = run_creations(ended.creations);
  if (!status.ok() && status.code() != ncclInProgress) return status;
  if (!ended.calls.empty()) {
    const Status ran = run_calls(ended.calls);
    if (!ran.ok()) return ran;
  }
  if (const Status ended_now = run_finalizations(ended.finalized); status.ok()) status = ended_now;
  return real.ok() ? status : real;
}

bool in_group() { return group != nullptr; }

Status enter_real_group() {
  if (group == nullptr || group->real_open) return {};
  const ncclResult_t result = call_real(pncclGroupStart, "ncclGroupStart");
  if (result != ncclSuccess) return fail(result, "the real NCCL cannot start a group");
  group->real_open = true;
  return {};
}

Status submit(const CommunicatorPtr &communicator, const std::vector<Call> &calls) {
  std::vector<PendingCall> now;
  std::vector<PendingCall> &pending = group != nullptr ? group->calls : now;
  for (const Call &call : calls) pending.push_back({communicator, call});
  return group != nullptr ? Status() : run_calls(now);
}

Status submit(const CommunicatorPtr &communicator, Submission &one) {
  if (group != nullptr) {
    group->calls.push_back({communicator, one.call});
    return {};
  }
  Owner owner;
  COLLC_RETURN_IF_FAILED(owner.take(*communicator));
  COLLC_RETURN_IF_FAILED(communicator->prepare(&one.call));
  COLLC_RETURN_IF_FAILED(backend().admit_one(one));
  communicator->count(&one.call);
  const CallRange range(one.call);
  CallEvents events;
  events.begin(communicator->profile(), *one.rank, one.call);
  backend().run_one(one);
  if (!one.status.ok()) communicator->set_failed(one.status);
  return one.status;
}

Status finalize(const CommunicatorPtr &communicator) {
  if (group == nullptr) return run_finalizations({communicator});
  group->finalized.push_back(communicator);
  return {};
}

Status create(const CommunicatorPtr &communicator, const Origin &origin, ncclComm_t *handle) {
  *handle = add_communicator(communicator);
  PendingCreation creation{communicator, origin, handle, {}};
  if (group != nullptr) {
    group->creations.push_back(std::move(creation));
    return {};
  }
  std::deque<PendingCreation> one;
  one.push_back(std::move(creation));
  return run_creations(one);
}

void keep_failure(const Status &status) {
  if (group != nullptr && group->failure.ok()) group->failure = status;
}

}  // namespace collc
