// The common part of launches of collectives and of transfers: the calls of a group, and the streams that they are on.
#pragma once
#include <algorithm>
#include <vector>

#include "cuda/deferred_frees.h"
#include "cuda/rank.h"

namespace collc::cuda {

inline CudaRank &rank_of(const Submission &submission) { return *static_cast<CudaRank *>(submission.rank); }

inline Stream stream_of(const Submission &submission) { return submission.call.stream; }

// Calls that one launch or copy serves, of ranks on one device.
using Together = std::vector<Submission *>;

// The stream of a launch.
struct MainStream {
  Stream stream = nullptr;
  StreamPlace place;
};

// Runs `body` after the work on all streams of the calls and makes what follows on any of them wait for it.
template <class Body>
Status between_streams(const Together &calls, Body body) {
  const std::shared_lock<std::shared_mutex> launches(launching());
  const Driver &cu = driver();
  const Stream main = stream_of(*calls[0]);
  std::vector<Stream> joined = {main};
  std::vector<CudaRank *> ranks;  // once each, though a rank may have many transfers
  for (Submission *submission : calls) {
    CudaRank *const rank = &rank_of(*submission);
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    const Stream stream = stream_of(*submission);
    if (std::find(joined.begin(), joined.end(), stream) != joined.end()) continue;
    joined.push_back(stream);
    COLLC_RETURN_IF_FAILED(check(cu.event_record(rank->async_calls()->ready(), stream), "recording an event"));
    COLLC_RETURN_IF_FAILED(check(cu.stream_wait(main, rank->async_calls()->ready(), 0), "ordering streams"));
  }
  // Not before: a stream that is captured draws those into its capture that wait for it.
  StreamPlace place;
  COLLC_RETURN_IF_FAILED(CallOrder::look(main, &place));
  for (CudaRank *rank : ranks) COLLC_RETURN_IF_FAILED(rank->async_calls()->order().follow(main, place));
  COLLC_RETURN_IF_FAILED(body(MainStream{main, place}));
  if (joined.size() > 1) {
    const Event finished = rank_of(*calls[0]).async_calls()->ready();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(finished, main), "recording an event"));
    for (size_t s = 1; s < joined.size(); ++s)
      COLLC_RETURN_IF_FAILED(check(cu.stream_wait(joined[s], finished, 0), "ordering streams"));
  }
  for (CudaRank *rank : ranks) COLLC_RETURN_IF_FAILED(rank->async_calls()->order().note(main, place));
  return {};
}

// Why the transfers of a group cannot begin.
Status check_transfers(const std::vector<Submission> &batch);
// Puts them on their streams, one launch per communicator and device.
void run_transfers(std::vector<Submission> &batch);

}  // namespace collc::cuda
