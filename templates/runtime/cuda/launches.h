// What the launches of collectives and of transfers have in common: the calls of a group, and the streams that they are on.
#pragma once
#include <algorithm>
#include <vector>

#include "cuda/rank.h"
#include "cuda/remains.h"

namespace collc::cuda {

inline CudaRank &rank_of(const Submission &submission) { return *static_cast<CudaRank *>(submission.rank); }

inline Stream stream_of(const Submission &submission) { return submission.call.stream; }

inline Address address(const void *pointer) { return reinterpret_cast<Address>(pointer); }

// Calls that one launch or copy serves, of ranks on one device.
using Together = std::vector<Submission *>;

// Runs `body` after the work on all streams of the calls and makes what follows on any of them wait for it.
template <class Body>
Status between_streams(const Together &calls, Body body) {
  const std::shared_lock<std::shared_mutex> launches(launching());
  const Driver &cu = driver();
  const Stream main = stream_of(*calls[0]);
  std::vector<Stream> joined = {main};
  for (Submission *submission : calls) {
    COLLC_RETURN_IF_FAILED(rank_of(*submission).order().follow(main));
    const Stream stream = stream_of(*submission);
    if (std::find(joined.begin(), joined.end(), stream) != joined.end()) continue;
    joined.push_back(stream);
    const Event ready = rank_of(*submission).ready();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(ready, stream), "recording an event"));
    COLLC_RETURN_IF_FAILED(check(cu.stream_wait(main, ready, 0), "ordering streams"));
  }
  COLLC_RETURN_IF_FAILED(body(main));
  if (joined.size() > 1) {
    const Event finished = rank_of(*calls[0]).ready();
    COLLC_RETURN_IF_FAILED(check(cu.event_record(finished, main), "recording an event"));
    for (size_t s = 1; s < joined.size(); ++s)
      COLLC_RETURN_IF_FAILED(check(cu.stream_wait(joined[s], finished, 0), "ordering streams"));
  }
  for (Submission *submission : calls) COLLC_RETURN_IF_FAILED(rank_of(*submission).order().note(main));
  return {};
}

// Why the transfers of a group cannot begin.
Status check_transfers(const std::vector<Submission> &batch);
// Puts them on their streams, one launch per communicator and device.
void run_transfers(std::vector<Submission> &batch);

}  // namespace collc::cuda
