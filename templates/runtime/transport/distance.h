// How far the cores of two ranks are apart: how long a cache line takes that the one has written and the other reads.
//
// Cores with a common cache hand a line over at once. Others (another part of the chip, another socket, a virtual machine whose
// cores have been moved apart) take several times as long for every line that stands in the other's cache as modified: then other
// ways of moving data are best (plan/thresholds.h). Ranks move between cores, and the cores of virtual machines between places, so
// this is measured while calls run: the writer of a FIFO stores in a line of its own now and then, just before a chunk, and the
// reader of the chunk times the load. It says in its own line what it has found, for writers that read nothing themselves.
// `collc tune --machine` times such loads too (base/measure_copies.h): what is far is the same for both.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/line_load.h"
#include "base/status.h"

namespace collc {

// One in so many chunks.
constexpr uint64_t kProbeEvery = 8;

// What a rank knows of the others. Nothing is measured before begin().
class Distances {
 public:
  // COLLC_CORES: all are near or far, whatever is measured; a number, for tests: near for so many loads, then far, by turns.
  Status read() {
    const char *const text = read_text("COLLC_CORES");
    if (text == nullptr) return {};
    const std::string word = text;
    given_ = word == "near" ? Given::kNear : word == "far" ? Given::kFar : Given::kTurns;
    if (given_ == Given::kTurns && (!read_whole("COLLC_CORES", 1000000, &turn_).ok() || turn_ == 0))
      return fail(ncclInvalidUsage, "COLLC_CORES=%.60s is not near, far or a number of loads", text);
    return {};
  }
  bool is_given() const { return given_ != Given::kNothing; }
  bool is_given_far() const { return given_ == Given::kFar; }

  // `ticks`: of a nanosecond.
  void begin(uint32_t nranks, double ticks) {
    peers_.resize(nranks);
    const uint64_t own = time_own_load();
    own_up_to_ = own + static_cast<uint64_t>(kOwnLoad * ticks);
    far_from_ = own + static_cast<uint64_t>(kFarLoad * ticks);
    near_to_ = own + static_cast<uint64_t>(kNearLoad * ticks);
    for (Peer &peer : peers_) set(peer, given_ == Given::kFar);
  }
  bool measures() const { return !peers_.empty(); }

  // A load of what the peer has just written. A single one may have waited for anything: the least of the last ones counts, once so
  // many are known. Now and then a line has come before it was asked for and stands in the own cache, which tells nothing. Where all
  // do, the ranks share that cache.
  void loaded(uint32_t peer, uint64_t ticks) {
    Peer &one = peers_[peer];
    if (given_ == Given::kTurns) return set(one, ++loads_ / turn_ % 2 != 0);
    if (ticks == 0 || is_given()) return;
    one.ntold = 0;
    if (ticks <= own_up_to_) {
      if (++one.nown >= kLoads) set(one, false);
      return;
    }
    one.nown = 0;
    one.ticks[one.nloads++ % kLoads] = ticks;
    if (one.nloads < kLoads) return;
    const uint64_t least = *std::min_element(one.ticks, one.ticks + kLoads);
    set(one, one.is_far ? least > near_to_ : least > far_from_);
  }
  // What the peer says, who has read `chunks` more. A rank that has read from it not long ago knows itself; else it begins anew.
  void told(uint32_t peer, bool is_far, uint32_t chunks) {
    Peer &one = peers_[peer];
    if (is_given()) return;
    one.ntold += std::min(chunks, kSilent);
    if (one.nloads >= kLoads && one.ntold <= kSilent) return;
    if (one.ntold > kSilent) one.nloads = one.ntold = 0;
    set(one, is_far);
  }

  bool is_far(uint32_t peer) const { return nfar_ != 0 && peers_[peer].is_far; }
  bool any_far() const { return nfar_ != 0; }

 private:
  static constexpr uint32_t kSilent = 64;
  struct Peer {
    uint64_t ticks[kLoads];
    uint32_t nloads;  // since it was long silent
    uint32_t nown;  // loads in a row of lines that stood in the own cache
    uint32_t ntold;  // chunks since the last load
    bool is_far;
  };
  void set(Peer &peer, bool is_far) {
    if (is_far != peer.is_far) nfar_ += is_far ? 1 : UINT32_MAX;
    peer.is_far = is_far;
  }

  enum class Given : uint8_t { kNothing, kNear, kFar, kTurns };
  Given given_ = Given::kNothing;
  uint32_t turn_ = 0, loads_ = 0;
  std::vector<Peer> peers_;  // by NCCL rank
  uint64_t own_up_to_ = 0, far_from_ = 0, near_to_ = 0;  // ticks of a load
  uint32_t nfar_ = 0;
};

}  // namespace collc
