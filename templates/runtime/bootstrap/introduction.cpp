#include "bootstrap/introduction.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string>

#include "base/environment.h"
#include "base/machine.h"
#include "plan/embedded_tables.h"
#include "bootstrap/rendezvous.h"

namespace collc {
Status introduce(Introduction *mine, const std::vector<uint32_t> &gpus, const Tuning &tuning, uint64_t found) {
  static std::mutex mutex;
  static uint64_t process;
  static int process_id = 0;
  std::memset(mine, 0, sizeof *mine);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    // A forked child is another process and draws another number.
    if (process_id != getpid()) COLLC_RETURN_IF_FAILED(random_bytes(&process, sizeof process));
    process_id = getpid();
    mine->process = process;
  }
  mine->build = build_fingerprint();
  mine->machine = this_machine();
  mine->network = this_network();
  std::string names;
  for (const uint32_t gpu : gpus) names += std::to_string(gpu) + ",";
  mine->gpus = hash_of(names);
  mine->tuning = tuning.digest();
  mine->found = found;
  mine->disabled = is_set("COLLC_DISABLE") ? 1 : 0;
  uint32_t checks = 0;
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_CHECK", 1, &checks));
  mine->checks = checks;
  uint32_t tls = 0;
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_NET_TLS", 1, &tls));
  mine->tls = tls;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) std::memcpy(mine->cpus, &cpus, std::min(sizeof cpus, sizeof mine->cpus));
  gethostname(mine->host, sizeof mine->host - 1);
  return {};
}

Status compare_builds(const std::vector<Introduction> &all) {
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r].build != all[0].build) return fail(ncclInvalidUsage, "ranks 0 and %zu load different builds of the library", r);
  return {};
}

Status compare_tunings(const std::vector<Introduction> &all) {
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r].tuning != all[0].tuning)
      return fail(ncclInvalidUsage, "ranks 0 and %zu have different tables of COLLC_TUNING%s", r,
                  all[0].tuning == 0   ? ": rank 0 has none"
                  : all[r].tuning == 0 ? format(": rank %zu has none", r).c_str()
                                       : "");
  return {};
}

Status compare_places(const std::vector<Introduction> &all) {
  for (size_t r = 1; r < all.size(); ++r) {
    // The first rank of each machine passes the memory on to the others over a local socket, which needs a common network
    // namespace.
    size_t first = 0;
    while (all[first].machine != all[r].machine) ++first;
    if (!same_network(all[r].network, all[first].network))
      return fail(ncclInvalidUsage, "ranks %zu and %zu are in containers with different networks; this library serves one",
                  first, r);
    if (all[r].found != all[0].found)
      return fail(ncclInvalidUsage, "ranks 0 and %zu find different machines in COLLC_TOPOLOGY", r);
    if (all[r].gpus != all[0].gpus) return fail(ncclInvalidUsage, "ranks 0 and %zu have different COLLC_GPUS", r);
  }
  return {};
}

Status compare_disabled(const std::vector<Introduction> &all) {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < all.size(); ++r)
    if (all[r].disabled != 0) ranks.push_back(r);
  if (ranks.empty()) return {};
  if (ranks.size() == all.size()) return fail(ncclInvalidUsage, "COLLC_DISABLE is set");
  return fail(ncclInvalidUsage, "COLLC_DISABLE is set on rank%s %s", ranks.size() == 1 ? "" : "s", list_ranks(ranks).c_str());
}

Status compare_tls(const std::vector<Introduction> &all) {
  const bool one_machine =
      std::all_of(all.begin(), all.end(), [&all](const Introduction &one) { return one.machine == all[0].machine; });
  for (size_t r = 1; r < all.size() && !one_machine; ++r)
    if (all[r].tls != all[0].tls) {
      const size_t with = all[0].tls != 0 ? 0 : r, without = r - with;
      return fail(ncclInvalidUsage, "COLLC_NET_TLS=1 on rank %zu (%s), not on rank %zu (%s): set it on all ranks or on none",
                  with, printable(std::string(all[with].host, strnlen(all[with].host, sizeof all[with].host))).c_str(), without,
                  printable(std::string(all[without].host, strnlen(all[without].host, sizeof all[without].host))).c_str());
    }
  return {};
}

bool asks_for_check(const std::vector<Introduction> &all) {
  return std::any_of(all.begin(), all.end(), [](const Introduction &one) { return one.checks != 0; });
}

uint32_t count_cores(const std::vector<Introduction> &all, uint32_t rank) {
  uint32_t cores = 0;
  for (size_t word = 0; word < std::size(all[0].cpus); ++word) {
    uint64_t together = 0;
    for (const Introduction &one : all)
      if (one.machine == all[rank].machine) together |= one.cpus[word];
    cores += static_cast<uint32_t>(__builtin_popcountll(together));
  }
  return std::max(cores, 1u);
}

}  // namespace collc
