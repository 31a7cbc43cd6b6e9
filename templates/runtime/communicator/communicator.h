// A communicator as one rank sees it: creation, calls, errors, end. This library's backend serves it, or it wraps a
// communicator of the real NCCL. The caller's handle is always of this library.
//
// Owner: the registry (registry.h), and each thread in a call. Threads: one at a time makes calls (Owner); aborts, revocations
// and queries come from any thread. initialize(), split(), shrink() and grow() block until the other ranks take part, revoke()
// and wait_for_calls() until calls have ended.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/call_numbers.h"
#include "communicator/flight.h"
#include "communicator/link_check.h"
#include "communicator/part_mail.h"
#include "communicator/profiler.h"
#include "communicator/scalings.h"
#include "communicator/turns.h"
#include "executor/backend.h"
#include "plan/tuning.h"

namespace collc {

// The settings of an ncclConfig_t; fields that the caller's version lacks have their defaults.
struct Config {
  bool blocking = true;
  uint32_t most_channels = 0;  // maxCTAs; 0: not said
  std::string name;            // commName; "" without one
  std::string network;         // netName, likewise
  Bytes raw;  // the caller's struct; empty without one
  // For the real NCCL, with texts of ours: a part inherits them when the caller's may be gone. Null without a struct.
  ncclConfig_t *for_real();
};

Status read_config(const ncclConfig_t *given, Config *config);

// How a communicator comes to be: one of both is called, once, in any thread.
struct Origin {
  // Blocks until all ranks are there.
  std::function<Status(class Communicator *)> make;
  // Tells the other ranks, which may be waiting, why this one does not take part. Waits for a few seconds at most.
  std::function<void(const Status &)> decline;
};

class Communicator {
 public:
  Communicator(Config config, int device) : config_(std::move(config)), device_(device) {}
  ~Communicator();
  Communicator(const Communicator &) = delete;
  Communicator &operator=(const Communicator &) = delete;

  Status initialize(const Origin &origin);
  // The same in a new thread: returns ncclInProgress, and state() reports when the thread is done.
  Status initialize_in_background(const Origin &origin);

  // Origins: joins the other ranks by an id (`gpus` of a parent's ranks; empty: as COLLC_GPUS says);
  Status join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const std::vector<uint32_t> &gpus = {});
  // takes a communicator that the real NCCL made;
  void wrap(ncclComm_t real, uint32_t nranks, uint32_t rank);
  // is one of the parts of `parent`, ordered by key; `absent` if the color is negative. `turn` is of the parent, and is
  // passed on when the ranks have exchanged their messages;
  Status split(Communicator &parent, Turn &turn, int color, int key);
  // is `parent` without some ranks.
  Status shrink(Communicator &parent, Turn &turn, const std::vector<uint32_t> &excluded);
  // is `parent` with more ranks, which join by the id that one rank of it has: the others give null.
  Status grow(Communicator &parent, Turn &turn, uint32_t nranks, const ncclUniqueId *id);
  const std::shared_ptr<Turns> &turns() const { return turns_; }
  // Tells `participants`, which may be waiting in a split or shrink, why this one does not take part.
  void decline_part(const Status &reason, const std::vector<uint32_t> &participants);
  std::vector<uint32_t> all_but(const std::vector<uint32_t> &excluded) const;

  uint32_t nranks() const { return nranks_; }
  uint32_t rank() const { return rank_; }
  int device() const { return device_; }
  bool absent() const { return absent_; }
  const Config &config() const { return config_; }
  ncclConfig_t *config_for_real() { return config_.for_real(); }
  RankBackend *backend_rank() { return rank_backend_.get(); }
  // Null if the ranks of this target read no buffers in place, or the communicator is not made.
  BufferRegistry *buffers() { return rank_backend_ != nullptr ? rank_backend_->buffers() : nullptr; }
  // The facts that a profiler plugin has about this communicator; null without a plugin.
  Profile *profile() { return profile_.get(); }
  // Null if we serve it.
  ncclComm_t real() const { return real_.load(std::memory_order_acquire); }

  // ncclSuccess, ncclInProgress while it is made, else what broke it.
  Status state() const { return is_sound() ? Status() : look(); }
  // Served by us, made, and not failed.
  bool is_sound() const { return sound_.load(std::memory_order_acquire) && !control_->aborted(); }

  // Makes the calling thread the owner, for the time of a call; returns false if another thread is. See Owner. The acquire here
  // and the release in disown() order the calls of one owner before the calls of the next.
  bool try_own() { return !is_owned_.exchange(true, std::memory_order_acquire); }
  void disown() { is_owned_.store(false, std::memory_order_release); }

  const Placement &placement() const { return placement_; }
  // The results of COLLC_CHECK for the pairs of the plan; empty without it.
  const std::vector<CheckedPair> &checked() const { return checked_; }

  // The program that a call of `bytes` (count * element size) runs, null if there is none; `root` is an NCCL rank or -1.
  // `otherwise`: what the rank may run in its place; without it, the one of both that it would run now.
  const Program *choose(Collective collective, int root, uint64_t bytes, const Call *call = nullptr,
                        const Program **otherwise = nullptr) const;
  // From now on every call of the program's collective and root runs it; `number` is among all of the library's
  // programs. False if it is not of this allocation, or cannot run here.
  bool force(uint32_t number);
  // Finds the program of a call, or why it cannot begin.
  Status prepare(Call *call);
  // Counts a call that begins: sets its number and its signature.
  void count(Call *call) { numbers_.count(call); }

  Scalings &scalings() { return scalings_; }

  // After a failed call nothing can be said of the data in flight: the communicator stays broken, on every rank.
  void set_failed(const Status &status);

  // Ends the waits of this rank at once, and the waits of all other ranks with ncclRemoteError.
  void abort();
  // The same, but the communicator stays, to be split, shrunk or destroyed; waits for this rank's calls.
  Status revoke();
  bool revoked() const { return revoked_.load(std::memory_order_acquire); }
  // Ends its calls so that a part can be made. The calls of other ranks fail; the calls of this rank have ended, or end without
  // waiting.
  void give_way();
  // No calls from now on. In progress until the calls so far have ended and the other ranks have made them; state() says it.
  Status begin_to_finalize();
  // Waits for that.
  Status wait_for_calls();
  bool finalized() const { return finalized_.load(std::memory_order_acquire); }
  // No calls until it is resumed. Its memory stays where it is: other ranks have it mapped.
  Status suspend();
  Status resume();
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  // Waits for the thread of initialize_in_background.
  void wait_until_made();
  // For the real NCCL's Destroy and Abort: the wrapped handle, which is ours no more.
  ncclComm_t release_real();

 private:
  const AsyncCalls *async_calls() const { return rank_backend_ != nullptr ? rank_backend_->async_calls() : nullptr; }
  Status look() const;  // state(), under the lock
  Status look_at_end() const;  // the same when it is finalized
  void leave_record(const Status &why);
  Status set_up(class Rendezvous &rendezvous, const std::string &key, struct RankContext &context, Status status);
  Status set_up_memory(class Rendezvous &rendezvous, class JointAttempt &attempt, struct RankContext &context);
  Status share_memory(class Rendezvous &rendezvous, class JointAttempt &attempt, const struct RankContext &context,
                      std::shared_ptr<Segment> *shared);
  Status hand_over_late(class Rendezvous &rendezvous, struct RankContext &context, const Status &reason);
  Status look_at_links(class Rendezvous &rendezvous, bool declared, NvLinks *links, Status *fits);
  Status check_plan(const struct RankContext &context);
  Status hand_over(class Rendezvous &rendezvous, const Status &reason);
  Status wait_for_turn(Turn &turn, const Communicator &parent) const;
  // Makes the communicator of `members` of the parent; the first of them makes the id. All of `participants` take part.
  Status part_of(Communicator &parent, Turn &turn, const std::vector<uint32_t> &participants,
                 const std::vector<uint32_t> &members);

  Config config_;
  int device_;
  uint32_t nranks_ = 0;
  uint32_t rank_ = 0;
  bool absent_ = false;
  CallNumbers numbers_;
  double timeout_ = 0;            // COLLC_TIMEOUT, in seconds; 0: no limit
  std::vector<uint32_t> gpus_;  // what the ranks stand for, indices of the topology; empty: unknown
  Placement placement_;
  Choices choices_;
  std::vector<CheckedPair> checked_;
  const std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();  // of its parts
  std::atomic<ncclComm_t> real_{nullptr};
  std::shared_ptr<Control> control_;
  std::shared_ptr<FlightRecord> flight_;  // null until the ranks share memory
  std::unique_ptr<RankBackend> rank_backend_;
  std::unique_ptr<Profile> profile_;
  std::thread thread_;
  Scalings scalings_;
  std::atomic<bool> stopped_{false};
  PartMail mail_{stopped_};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> finalized_{false};
  int64_t finalized_ms_ = 0;  // when
  mutable std::atomic<bool> has_compared_{false};  // the calls of all ranks, since then
  std::atomic<bool> suspended_{false};
  // Served by us, made, and not failed on this rank: state() needs no lock. Then control_ changes no more.
  std::atomic<bool> sound_{false};
  std::atomic<bool> is_owned_{false};  // a thread is in a call
  mutable std::mutex mutex_;  // guards control_, flight_, real_ and status_, which other threads ask for
  Status status_{ncclInProgress, "the communicator is being made"};
};

// The right of one thread to call a communicator, until the end of its block. Two threads in calls of one communicator would
// move the same chunks, so the second thread is refused, which changes nothing. Aborts, revocations and queries need no owner.
class Owner {
 public:
  Owner() = default;
  ~Owner() {
    if (owned_ != nullptr) owned_->disown();
  }
  Owner(Owner &&other) noexcept : owned_(std::exchange(other.owned_, nullptr)) {}
  Owner &operator=(Owner &&) = delete;

  // Once. ncclInvalidUsage if another thread is in a call of the communicator.
  Status take(Communicator &communicator) {
    if (!communicator.try_own()) return refuse();
    owned_ = &communicator;
    return {};
  }
  bool owns(const Communicator &communicator) const { return owned_ == &communicator; }

 private:
  static Status refuse();

  Communicator *owned_ = nullptr;
};

}  // namespace collc
