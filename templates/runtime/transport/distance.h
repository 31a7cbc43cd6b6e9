// Measures how far apart the cores of two ranks are: the time of a load of a cache line that the other core has just written.
//
// Cores that share a cache pass a line on quickly. Other cores (on another part of the chip, on another socket, or virtual
// cores that have been moved apart) take several times as long for each line that is modified in the other core's cache, so
// other ways of moving data are best between them (plan/thresholds.h). Ranks move between cores, and virtual cores move
// between places, so the distance is measured while calls run. Now and then the writer of a FIFO stores into the FIFO's probe
// line just before a chunk, and the reader of the chunk times its load of the line. The reader reports the result in its head
// line, for writers that read nothing themselves. `collc tune --machine` times such loads, too (base/measure_copies.h), with
// the same limits for far and near.
//
// The thread that runs a rank uses its object; nothing blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/line_load.h"
#include "base/status.h"

namespace collc {

// One of this many large chunks is probed.
constexpr uint64_t kProbeEvery = 8;

// One rank's knowledge of its distance to the other ranks. Nothing is measured before begin().
class Distances {
 public:
  // Reads COLLC_CORES. "near" or "far" fixes the distance to all ranks, whatever is measured. A number N, for tests, makes
  // ranks near for N loads, then far for N loads, and so on.
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

  // Starts measuring. `ticks` is the number of ticks in a nanosecond.
  void begin(uint32_t nranks, double ticks) {
    peers_.resize(nranks);
    const uint64_t own = time_own_load();
    own_up_to_ = own + static_cast<uint64_t>(kOwnLoad * ticks);
    far_from_ = own + static_cast<uint64_t>(kFarLoad * ticks);
    near_to_ = own + static_cast<uint64_t>(kNearLoad * ticks);
    for (Peer &peer : peers_) set(peer, given_ == Given::kFar);
  }
  bool measures() const { return !peers_.empty(); }

  // Takes the ticks of a load of a line that the peer has just written. A single load may be slow for any reason, so the
  // minimum of the last kLoads loads counts, once there are as many. If the line was already in this core's cache, the load
  // says nothing about the distance; after kLoads such loads in a row the ranks count as near, because they then share that
  // cache.
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
  // Takes the report of a peer that has read `chunks` more chunks. It is ignored while this rank's own loads count: it has
  // kLoads of them, and the peer has read at most kSilent chunks since the last one. After a longer pause this rank starts
  // over.
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
  // Chunks without a load after which the loads are forgotten
  static constexpr uint32_t kSilent = 64;
  struct Peer {
    uint64_t ticks[kLoads];
    uint32_t nloads;  // loads since the last long pause
    uint32_t nown;  // consecutive loads of lines that were already in this core's cache
    uint32_t ntold;  // chunks that the peer has reported since the last load
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
  uint64_t own_up_to_ = 0, far_from_ = 0, near_to_ = 0;  // limits for the ticks of a load
  uint32_t nfar_ = 0;
};

}  // namespace collc
