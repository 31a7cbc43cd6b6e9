#include "control/last_calls.h"

namespace collc {
namespace {

Status compare_counts(const Control &control, uint32_t rank, uint32_t peer, bool *is_late) {
  // Read before the calls, so that all calls that a rank made before its end are visible.
  const bool has_left = control.has_left(peer), is_alive = control.alive(peer);
  COLLC_RETURN_IF_FAILED(control.compare(rank, peer));
  const uint64_t mine = control.newest_call(rank), theirs = control.newest_call(peer);
  const auto number = [](uint64_t call) { return static_cast<unsigned long long>(call); };
  *is_late = theirs < mine && !has_left && is_alive;
  if (theirs == mine || *is_late) return {};
  if (theirs > mine)
    return fail(ncclInvalidUsage, "calls differ: rank %u has made call %llu, rank %u was finalized after call %llu", peer,
                number(theirs), rank, number(mine));
  return fail(ncclRemoteError, "rank %u has %s before call %llu", peer, has_left ? "destroyed its communicator" : "died",
              number(mine));
}

}  // namespace

std::string describe_missing(const Control &control, uint32_t rank, uint64_t number) {
  std::vector<uint32_t> missing;
  for (uint32_t peer = 0; peer < control.nranks(); ++peer) {
    if (peer == rank) continue;
    const uint64_t next = control.newest_call(peer) + 1;
    if (next > number) continue;
    if (next < number) missing.clear();
    number = next;
    missing.push_back(peer);
  }
  if (missing.empty()) return {};
  return format("; rank%s %s ha%s not made call %llu", missing.size() > 1 ? "s" : "", list_ranks(missing).c_str(),
                missing.size() > 1 ? "ve" : "s", static_cast<unsigned long long>(number));
}

Status compare_last_calls(const Control &control, uint32_t rank, std::vector<uint32_t> *late) {
  late->clear();
  for (uint32_t peer = 0; peer < control.nranks(); ++peer) {
    if (peer == rank) continue;
    bool is_late = false;
    COLLC_RETURN_IF_FAILED(compare_counts(control, rank, peer, &is_late));
    if (is_late) late->push_back(peer);
  }
  return {};
}

}  // namespace collc
