// The agreement of control/agreement.h in every order of its steps: ranks that have made 0 to 3 calls when something is
// proposed, one that says no, one that dies, one that will not wait, and then threads.
//
//   agreement orders NRANKS     prints: starts, states, how many ended changed, how many kept
//   agreement threads NRANKS    prints: calls, changes
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "control/agreement.h"

namespace {

using collc::Agreement;
using collc::Ballot;
using collc::Motion;

constexpr uint32_t kMost = 4;
constexpr uint64_t kCalls = 6;  // that each rank makes; the proposal comes before the fourth at the latest
constexpr uint64_t kAnyAhead = kCalls;

[[noreturn]] void wrong(const char *what) {
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}
void require(bool holds, const char *what) {
  if (!holds) wrong(what);
}

// The state of one rank after a sequence of steps.
struct Rank {
  uint64_t begun;  // calls
  uint32_t changed, dead;
};
struct World {
  std::array<uint64_t, 3> motion;
  std::array<std::array<uint64_t, 2>, kMost> ballots;
  std::array<std::array<char, sizeof(Agreement)>, kMost> agreements;
  std::array<Rank, kMost> ranks;
  std::array<uint8_t, kCalls + 1> uses;  // of each call: 0 nobody began it, 1 as before, 2 changed
  uint32_t proposed;
};
static_assert(std::is_trivially_copyable_v<Agreement> && std::is_trivially_copyable_v<World>);

enum class Event { kNone, kNo, kDeath, kImpatience };

struct Totals {
  uint64_t starts = 0, states = 0, changed = 0, kept = 0;
};

class Orders {
 public:
  // A rank begins a call only when no other is more than `ahead` calls behind: 1 where every call needs all ranks.
  Orders(uint32_t nranks, Event event, uint64_t ahead, Totals *totals)
      : nranks_(nranks), event_(event), ahead_(ahead), totals_(totals) {}

  // Runs all orders of steps from a start where rank r has begun begun[r] calls.
  void run(const std::array<uint64_t, kMost> &begun) {
    World world = {};
    for (uint32_t r = 0; r < nranks_; ++r) {
      const Agreement fresh(&motion_, ballots_, nranks_, r);
      std::memcpy(world.agreements[r].data(), &fresh, sizeof fresh);
      world.ranks[r].begun = begun[r];
      for (uint64_t call = 1; call <= begun[r]; ++call) world.uses[call] = 1;
    }
    ++totals_->starts;
    seen_.clear();
    visit(world);
  }

 private:
  void visit(const World &world) {
    if (!seen_.emplace(reinterpret_cast<const char *>(&world), sizeof world).second) return;
    ++totals_->states;
    bool moved = false, all_done = true;
    for (uint32_t r = 0; r < nranks_; ++r) {
      if (world.ranks[r].dead != 0) continue;
      if (world.ranks[r].begun < kCalls) {
        all_done = false;
        moved |= step(world, r, false);
        if (event_ == Event::kImpatience && r == nranks_ - 1) moved |= step(world, r, true);
      }
      // Dies between two steps, whether it has answered or not; the others may be told at any time after.
      if (event_ == Event::kDeath && r == nranks_ - 1 && r != 0) {
        World after = world;
        after.ranks[r].dead = 1;
        visit(after);
      }
    }
    if (!moved && !all_done) wrong("ranks wait for each other");
    if (all_done) end(world);
  }

  // One look of a rank that is about to begin its next call. False if that changes nothing.
  bool step(const World &before, uint32_t r, bool impatient) {
    World world = before;
    load(world);
    Agreement &mine = agreements_[r];
    Rank &rank = world.ranks[r];
    const uint64_t call = rank.begun + 1;
    if (r == 0 && world.proposed == 0 && mine.may_propose()) {
      mine.propose(7);
      world.proposed = 1;
    }
    if (mine.asks()) {
      require(mine.subject() == 7, "the subject");
      if (event_ == Event::kNo && r == nranks_ - 1)
        mine.refuse();
      else
        mine.answer(call + 1);
    }
    // A wait ends when a rank dies, or when a rank does other things after its last call.
    bool gone = world.ranks[nranks_ - 1].dead != 0, behind = false;
    for (uint32_t other = 0; other < nranks_; ++other) {
      gone |= ahead_ == kAnyAhead && world.ranks[other].begun == kCalls;
      behind |= world.ranks[other].dead == 0 && world.ranks[other].begun + ahead_ < call;
    }
    if (mine.is_open() && (impatient || gone)) mine.refuse();
    if (!behind && take_turn(&world, r, mine.at(call))) ++rank.begun;
    store(&world);
    if (std::memcmp(&world, &before, sizeof world) == 0) return false;
    visit(world);
    return true;
  }

  // False if the rank may not begin its next call.
  bool take_turn(World *world, uint32_t r, Agreement::Turn turn) const {
    if (turn == Agreement::Turn::kWait) return false;
    Rank &rank = world->ranks[r];
    if (turn == Agreement::Turn::kChange) {
      require(rank.changed == 0, "a change comes once");
      rank.changed = 1;
    }
    const uint8_t use = rank.changed != 0 ? 2 : 1;
    uint8_t &used = world->uses[rank.begun + 1];
    require(used == 0 || used == use, "all ranks use the same in the same call");
    used = use;
    return true;
  }

  void end(const World &world) {
    bool changed = false;
    for (const uint8_t use : world.uses) changed |= use == 2;
    ++(changed ? totals_->changed : totals_->kept);
    require(world.proposed == 1 || world.ranks[nranks_ - 1].dead != 0, "something was proposed");
    if (event_ == Event::kNone && ahead_ == 1) {
      for (uint32_t r = 0; r < nranks_; ++r) require(world.ranks[r].changed == 1, "nobody refused");
      require(world.uses[kCalls] == 2, "it holds in the end");
    }
    require(!(event_ == Event::kNo && changed), "one no keeps what held");
  }

  void load(const World &world) {
    motion_.number.store(world.motion[0]);
    motion_.subject.store(world.motion[1]);
    motion_.outcome.store(world.motion[2]);
    for (uint32_t r = 0; r < nranks_; ++r) {
      ballots_[r].answer.store(world.ballots[r][0]);
      ballots_[r].settled.store(world.ballots[r][1]);
      std::memcpy(static_cast<void *>(&agreements_[r]), world.agreements[r].data(), sizeof(Agreement));
    }
  }

  void store(World *world) const {
    world->motion = {motion_.number.load(), motion_.subject.load(), motion_.outcome.load()};
    for (uint32_t r = 0; r < nranks_; ++r) {
      world->ballots[r] = {ballots_[r].answer.load(), ballots_[r].settled.load()};
      std::memcpy(world->agreements[r].data(), &agreements_[r], sizeof(Agreement));
    }
  }

  uint32_t nranks_;
  Event event_;
  uint64_t ahead_;
  Totals *totals_;
  Motion motion_ = {};
  Ballot ballots_[kMost] = {};
  std::vector<Agreement> agreements_{kMost, Agreement(&motion_, ballots_, nranks_, 0)};
  std::set<std::string> seen_;
};

// Every start: 0 to 3 calls begun by each rank.
void all_orders(uint32_t nranks) {
  Totals totals;
  for (const Event event : {Event::kNone, Event::kNo, Event::kDeath, Event::kImpatience})
    for (const uint64_t ahead : {uint64_t{1}, kAnyAhead}) {
      if (nranks == kMost && ahead != 1) continue;  // minutes
      const auto orders = std::make_unique<Orders>(nranks, event, ahead, &totals);
      for (uint32_t code = 0; code < 1u << 2 * nranks; ++code) {
        std::array<uint64_t, kMost> begun = {};
        uint64_t least = kCalls, most = 0;
        for (uint32_t r = 0; r < nranks; ++r) {
          begun[r] = code >> 2 * r & 3;
          least = std::min(least, begun[r]);
          most = std::max(most, begun[r]);
        }
        if (most <= least + ahead) orders->run(begun);
      }
    }
  std::printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(totals.starts),
              static_cast<unsigned long long>(totals.states), static_cast<unsigned long long>(totals.changed),
              static_cast<unsigned long long>(totals.kept));
}

// Real threads: what rank r used in call n must be what rank 0 used. One rank refuses now and then.
void threads(uint32_t nranks) {
  constexpr uint64_t kMany = 20000, kAhead = 8;
  Motion motion = {};
  std::vector<Ballot> ballots(nranks);
  std::vector<std::vector<uint64_t>> used(nranks, std::vector<uint64_t>(kMany + 1));
  std::vector<std::atomic<uint64_t>> begun(nranks);
  std::vector<std::thread> running;
  for (uint32_t r = 0; r < nranks; ++r)
    running.emplace_back([&, r] {
      Agreement mine(&motion, ballots.data(), nranks, r);
      uint64_t now = 0;
      for (uint64_t call = 1; call <= kMany; ++call) {
        for (const std::atomic<uint64_t> &other : begun)
          while (other.load() + kAhead < call) std::this_thread::yield();
        if (r == 0 && call < kMany - 100 && mine.may_propose()) mine.propose(call);
        if (mine.asks()) {
          if (r == nranks - 1 && mine.subject() % 5 == 0)
            mine.refuse();
          else
            mine.answer(call + 1);
        }
        Agreement::Turn turn = mine.at(call);
        while (turn == Agreement::Turn::kWait) {
          // The others may have made their last calls.
          if (call > kMany - 100) mine.refuse();
          std::this_thread::yield();
          turn = mine.at(call);
        }
        if (turn == Agreement::Turn::kChange) now = mine.subject();
        used[r][call] = now;
        begun[r].store(call);
      }
    });
  for (std::thread &one : running) one.join();
  uint64_t changes = 0;
  for (uint64_t call = 1; call <= kMany; ++call) {
    for (uint32_t r = 1; r < nranks; ++r) require(used[r][call] == used[0][call], "the same in the same call");
    if (used[0][call] != used[0][call - 1]) ++changes;
    require(used[0][call] == 0 || used[0][call] % 5 != 0, "what was refused holds nowhere");
  }
  std::printf("%llu %llu\n", static_cast<unsigned long long>(kMany), static_cast<unsigned long long>(changes));
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const auto nranks = static_cast<uint32_t>(std::atoi(argv[2]));
  if (nranks < 2 || nranks > kMost) return 2;
  if (std::strcmp(argv[1], "orders") == 0)
    all_orders(nranks);
  else
    threads(nranks);
  return 0;
}
