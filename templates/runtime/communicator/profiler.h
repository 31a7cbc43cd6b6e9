// NCCL's profiler plugins: with NCCL_PROFILER_PLUGIN a plugin that is made for NCCL (interface versions 4 to 6) hears of our
// communicators and calls as it hears of NCCL's: a group, in it a collective or a transfer, and with versions 5 and 6 the call
// of the API around them. Host target: an event ends when the buffers are done; CUDA target: when the call is on its stream.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "executor/backend.h"
#include "plan/call.h"

namespace collc {

namespace plugin {
struct Description;
}

// The facts that the plugin has about one communicator.
class Profile {
 public:
  // Null without a plugin, or where it does not take the communicator: that stands in the log. `id` is the same on all ranks,
  // `name` is commName of the configuration.
  static std::unique_ptr<Profile> make(const RankContext &context, uint64_t id, const std::string &name);
  ~Profile();
  Profile(const Profile &) = delete;
  Profile &operator=(const Profile &) = delete;

 private:
  friend class CallEvents;
  Profile(void *context, int rank);
  void *const context_;
  const int rank_;
  const int process_;  // a forked child does not end what its parent began
  uint64_t numbers_[kCollectives] = {};  // of the calls of each collective so far
};

// The events of the calls of one group, or of one call outside of groups; they end with this object.
class CallEvents {
 public:
  CallEvents() = default;
  ~CallEvents() {
    if (!open_.empty()) end();
  }
  CallEvents(const CallEvents &) = delete;
  CallEvents &operator=(const CallEvents &) = delete;

  // Does nothing where `profile` is null. `call` is counted.
  void begin(Profile *profile, RankBackend &rank, const Call &call) {
    if (profile != nullptr) add(*profile, rank, call);
  }

 private:
  // The facts about a call for the plugin that the Call does not contain.
  struct Within {
    void *api, *group;
    uint64_t number;
    const Program *program;  // that runs; null: none
    const char *protocol;
  };
  void add(Profile &profile, RankBackend &rank, const Call &call) noexcept;
  void *open(const Profile &profile, plugin::Description *description);
  void *open_api(const Profile &profile, const Call &call);
  void *open_group(const Profile &profile);
  void open_call(const Profile &profile, const Call &call, const Within &within);
  void end() noexcept;

  std::vector<void *> open_;  // handles, in the order of the begins of their events
  void *api_ = nullptr;  // of the group call of the API
  struct Group {
    const Profile *profile;
    void *handle;
  };
  std::vector<Group> groups_;
};

}  // namespace collc
