#include "transport/neighbors.h"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/environment.h"

namespace collc {
namespace {

// What a rank publishes so that the others can try to read its memory.
struct PeerInfo {
  int32_t process;
  uint16_t allowed;
  uint16_t understood;  // 1: its variables were valid
  uint32_t far;  // 1: COLLC_CORES is "far"
  Overrides overrides;
  MachineThresholds thresholds;
  uint64_t address;  // of the token in this process
  uint64_t token;
  BufferHandle probe;  // a buffer that the others try to map
};

// How a rank reaches the memory of a peer; sent to that peer.
struct Answer {
  Reach reach;
  bool maps;  // it can map the peer's buffers of ncclMemAlloc
};

// Returns a random number of this process, because process numbers mean different things in different containers. A forked
// child is another process and draws another number.
const uint64_t &token() {
  static std::mutex mutex;
  static uint64_t number;
  static int process = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (process != getpid())
    while (getrandom(&number, sizeof number, 0) != sizeof number) continue;
  process = getpid();
  return number;
}

bool copy_out(int process, uint64_t from, void *to, uint64_t bytes) {
  char *at = static_cast<char *>(to);
  while (bytes > 0) {
    const iovec local{at, bytes};
    const iovec remote{reinterpret_cast<void *>(from), bytes};
    const ssize_t copied = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (copied <= 0) {
      if (copied < 0 && errno == EINTR) continue;
      return false;
    }
    at += copied;
    from += static_cast<uint64_t>(copied);
    bytes -= static_cast<uint64_t>(copied);
  }
  return true;
}

Reach try_reach(const PeerInfo &mine, const PeerInfo &theirs) {
  if (!mine.allowed || !theirs.allowed) return Reach::kSlots;
  if (mine.token == theirs.token) return Reach::kShared;
  uint64_t found = 0;
  const bool copied = copy_out(theirs.process, theirs.address, &found, sizeof found);
  return copied && found == theirs.token ? Reach::kKernel : Reach::kSlots;
}

// Returns whether this process can map buffers of the other one.
bool try_map(const PeerInfo &mine, const PeerInfo &theirs) {
  if (!mine.allowed || !theirs.allowed || mine.token == theirs.token) return false;
  return MappedBuffers().translate(theirs.process, theirs.probe, theirs.probe.base, sizeof(uint64_t)) != nullptr;
}

}  // namespace

Status Neighbors::probe(const Exchange &round, const Placement &placement, uint32_t rank, Status understood,
                        const Overrides &overrides, bool far) {
  double allowed = 1;
  if (understood.ok()) understood = read_number("COLLC_DIRECT", 0, 1, 1, &allowed);
  const bool may = understood.ok() && allowed != 0;
  // stays allocated until all ranks have tried to map it
  const std::unique_ptr<void, void (*)(void *)> probe(allocate_buffer(sizeof(uint64_t)),
                                                      [](void *memory) { static_cast<void>(release_buffer(memory)); });
  const PeerInfo mine{getpid(),
                      may,
                      understood.ok(),
                      far,
                      overrides,
                      find_thresholds(rank == 0),
                      reinterpret_cast<uint64_t>(&token()),
                      token(),
                      BufferLookup().find(probe.get(), sizeof(uint64_t))};
  std::vector<PeerInfo> infos;
  COLLC_RETURN_IF_FAILED(exchange(round, mine, &infos));
  const auto nranks = static_cast<uint32_t>(infos.size());
  std::vector<Answer> found(nranks), answers;
  Status agreed = understood;
  bool all_understood = true, first_here = true;
  for (uint32_t peer = 0; peer < nranks; ++peer) {
    const PeerInfo &theirs = infos[peer];
    all_understood &= theirs.understood != 0;  // a rank with invalid variables returns its error after the exchanges
    if (agreed.ok() && all_understood) agreed = compare_overrides(infos[0].overrides, theirs.overrides, peer);
    given_far_ |= theirs.far != 0;
    processes_.push_back(theirs.process);
    names_.push_back(placement.name_of(peer));
    const bool here = placement.is_here(peer);  // process numbers of other machines mean nothing here
    if (here && first_here) thresholds_ = theirs.thresholds;
    first_here &= !here;
    reach_into_.push_back(here ? try_reach(mine, theirs) : Reach::kWire);
    found[peer] = {reach_into_[peer], here && try_map(mine, theirs)};
  }
  COLLC_RETURN_IF_FAILED(exchange_rows(round, found, &answers));
  see_all_ = share_all_ = copy_all_ = true;
  for (uint32_t peer = 0; peer < nranks; ++peer) {
    for (uint32_t other = 0; other < nranks; ++other) {
      const Answer &answer = answers[size_t{peer} * nranks + other];
      const bool shares = other == peer || answer.reach == Reach::kShared;
      share_all_ &= shares;
      see_all_ &= shares || answer.maps;
      copy_all_ &= other == peer || answer.reach == Reach::kKernel;
    }
    const Answer &answer = answers[size_t{peer} * nranks + rank];
    reach_of_.push_back(answer.reach);
    maps_of_.push_back(answer.maps);
  }
  return agreed;  // only now, after the exchanges that the other ranks wait for
}

Status Neighbors::read(uint32_t peer, uint64_t from, void *to, uint64_t bytes) const {
  if (copy_out(processes_[peer], from, to, bytes)) return {};
  return fail(ncclRemoteError, "the memory of %s cannot be read any more (%s): has it died?", names_[peer].c_str(),
              std::strerror(errno));
}

}  // namespace collc
