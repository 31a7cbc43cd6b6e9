// A communicator as one rank sees it: creation, calls, errors, end.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "backend.h"
#include "plan.h"
#include "reduce.h"

namespace collc {

class Communicator {
 public:
  Communicator(uint32_t nranks, uint32_t rank) : nranks_(nranks), rank_(rank) {}
  ~Communicator();
  Communicator(const Communicator &) = delete;
  Communicator &operator=(const Communicator &) = delete;

  // Meets the other ranks and opens the backend; blocks. Called once, by one thread.
  Status initialise(const ncclUniqueId &id, int device);
  // The same in a thread of its own; async_error() says when it is done.
  void initialise_in_background(const ncclUniqueId &id, int device);

  uint32_t nranks() const { return nranks_; }
  uint32_t rank() const { return rank_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  void set_blocking(bool blocking) { blocking_ = blocking; }
  RankBackend *backend_rank() { return rank_backend_.get(); }

  // ncclSuccess, ncclInProgress while it is made, else what broke it.
  Status state() const;

  // Fills the fields of a call that are the communicator's: program, number, signature.
  Status prepare(Call *call);

  // After a failed call nothing can be said of the data in flight: the communicator stays broken, on every rank.
  void set_failed(const Status &status);

  // Ends waits of this rank at once, and those of all others with ncclRemoteError.
  void abort();
  // Waits for the thread of initialise_in_background.
  void join();

 private:
  Status make(const ncclUniqueId &id, int device);
  Status share_memory(Rendezvous &rendezvous, const std::string &key, uint64_t bytes);

  const uint32_t nranks_;
  const uint32_t rank_;
  int device_ = 0;
  bool blocking_ = true;
  uint32_t cores_ = 1;
  uint32_t processes_ = 1;
  uint64_t calls_ = 0;
  Placement placement_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<RankBackend> rank_backend_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;  // guards segment_ while it is made, and status_
  Status status_{ncclInProgress, "the communicator is being made"};
};

}  // namespace collc
