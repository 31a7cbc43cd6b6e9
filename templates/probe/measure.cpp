// Times copies between all ordered pairs of CPU cores or GPUs, for `collc probe --measure`.
//
//   measure host CPU CPU...      threads pinned to two cores: one writes a buffer, the other copies it away
//   measure cuda BUSID BUSID...  peer copies through the CUDA driver API, which is opened at run time
//
// One line per pair: number of the source, number of the destination, GB/s of a large copy, microseconds of a small one.
// The best of several tries counts, because disturbances only make a copy slower.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void fail(const std::string &what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

void report(size_t src, size_t dst, double bytes_per_second, double latency) {
  std::printf("%zu %zu %.4f %.4f\n", src, dst, bytes_per_second / 1e9, latency * 1e6);
}

// ---- cores ----

// Larger than the caches of one core, so that the copy measures the path between the cores.
constexpr size_t kHostBytes = size_t{8} << 20;
constexpr int kHostTries = 5;
constexpr int kPings = 2000;

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) {
    fail("cannot run on CPU " + std::to_string(cpu));
  }
}

struct alignas(128) Flag {
  std::atomic<int> value{0};
};

void wait_for(const Flag &flag, int value) {
  // If another process runs on the core, a waiting thread must not use up its whole time slice.
  for (int spins = 0; flag.value.load(std::memory_order_acquire) < value;) {
    if (++spins > 20000) {
      sched_yield();
      spins = 0;
    }
  }
}

void host_pair(size_t i, size_t j, int src, int dst) {
  std::vector<char> from(kHostBytes), to(kHostBytes, 1);
  Flag ping, pong;
  double best = 1e9, latency = 1e9;
  std::thread writer([&] {
    pin(src);
    for (int t = 1; t <= kHostTries; t++) {
      std::memset(from.data(), t, kHostBytes);
      ping.value.store(t, std::memory_order_release);
      wait_for(pong, t);
    }
    for (int t = kHostTries + 1; t <= kHostTries + kHostTries * kPings; t++) {
      ping.value.store(t, std::memory_order_release);
      wait_for(pong, t);
    }
  });
  std::thread reader([&] {
    pin(dst);
    for (int t = 1; t <= kHostTries; t++) {
      wait_for(ping, t);
      const auto start = Clock::now();
      std::memcpy(to.data(), from.data(), kHostBytes);
      best = std::min(best, seconds_since(start));
      if (to[kHostBytes / 2] != t) fail("a copy brought the wrong bytes");
      pong.value.store(t, std::memory_order_release);
    }
    for (int batch = 0, t = kHostTries + 1; batch < kHostTries; batch++) {
      const auto start = Clock::now();
      for (int k = 0; k < kPings; k++, t++) {
        wait_for(ping, t);
        pong.value.store(t, std::memory_order_release);
      }
      latency = std::min(latency, seconds_since(start) / kPings / 2);
    }
  });
  writer.join();
  reader.join();
  report(i, j, kHostBytes / best, latency);
}

void measure_host(const std::vector<std::string> &cpus) {
  for (size_t i = 0; i < cpus.size(); i++) {
    for (size_t j = 0; j < cpus.size(); j++) {
      if (i != j) host_pair(i, j, std::atoi(cpus[i].c_str()), std::atoi(cpus[j].c_str()));
    }
  }
}

// ---- GPUs ----

constexpr size_t kGpuBytes = size_t{64} << 20;
constexpr int kGpuTries = 5;
constexpr int kSmallCopies = 20;

// The functions of the driver API that are used; the names are the exported ones of cuda.h.
struct Driver {
  int (*init)(unsigned);
  int (*device)(int *, const char *);
  int (*retain)(void **, int);
  int (*current)(void *);
  int (*alloc)(uint64_t *, size_t);
  int (*release)(uint64_t);
  int (*can_access)(int *, int, int);
  int (*enable)(void *, unsigned);
  int (*copy)(uint64_t, void *, uint64_t, void *, size_t, void *);
  int (*synchronize)(void *);
  int (*error_name)(int, const char **);

  void check(int code, const std::string &what) const {
    const char *name = nullptr;
    if (code != 0) {
      error_name(code, &name);
      fail(what + ": " + (name != nullptr ? name : std::to_string(code)));
    }
  }
};

template <typename F>
void load(void *library, F &function, const char *name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) fail(std::string("libcuda.so.1 has no ") + name);
}

Driver open_driver() {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("there is no CUDA driver on this machine (libcuda.so.1)");
  Driver d{};
  load(library, d.init, "cuInit");
  load(library, d.device, "cuDeviceGetByPCIBusId");
  load(library, d.retain, "cuDevicePrimaryCtxRetain");
  load(library, d.current, "cuCtxSetCurrent");
  load(library, d.alloc, "cuMemAlloc_v2");
  load(library, d.release, "cuMemFree_v2");
  load(library, d.can_access, "cuDeviceCanAccessPeer");
  load(library, d.enable, "cuCtxEnablePeerAccess");
  load(library, d.copy, "cuMemcpyPeerAsync");
  load(library, d.synchronize, "cuStreamSynchronize");
  load(library, d.error_name, "cuGetErrorName");
  return d;
}

void measure_cuda(const std::vector<std::string> &buses) {
  const Driver d = open_driver();
  d.check(d.init(0), "cuInit");
  const size_t n = buses.size();
  std::vector<int> device(n);
  std::vector<void *> context(n);
  std::vector<uint64_t> buffer(n);
  for (size_t i = 0; i < n; i++) {
    d.check(d.device(&device[i], buses[i].c_str()), buses[i]);
    d.check(d.retain(&context[i], device[i]), buses[i]);
    d.check(d.current(context[i]), buses[i]);
    d.check(d.alloc(&buffer[i], kGpuBytes), buses[i] + ", memory");
  }
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < n; j++) {
      int direct = 0;
      if (i == j || d.can_access(&direct, device[i], device[j]) != 0 || direct == 0) continue;
      d.check(d.current(context[i]), buses[i]);
      const int code = d.enable(context[j], 0);
      // 704: the access is enabled already; 711: too many peers, so copies go through the host.
      if (code != 0 && code != 704 && code != 711) d.check(code, buses[i] + ", access to " + buses[j]);
    }
  }
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < n; j++) {
      if (i == j) continue;
      d.check(d.current(context[i]), buses[i]);
      double best = 1e9, latency = 1e9;
      for (int t = 0; t <= kGpuTries; t++) {
        auto start = Clock::now();
        d.check(d.copy(buffer[j], context[j], buffer[i], context[i], kGpuBytes, nullptr), buses[i] + ", copy");
        d.check(d.synchronize(nullptr), buses[i] + ", copy");
        if (t > 0) best = std::min(best, seconds_since(start));  // the first copy includes one-time setup
        start = Clock::now();
        for (int k = 0; k < kSmallCopies; k++) {
          d.check(d.copy(buffer[j], context[j], buffer[i], context[i], 4, nullptr), buses[i] + ", copy");
          d.check(d.synchronize(nullptr), buses[i] + ", copy");
        }
        if (t > 0) latency = std::min(latency, seconds_since(start) / kSmallCopies);
      }
      report(i, j, kGpuBytes / best, latency);
    }
  }
  for (size_t i = 0; i < n; i++) {
    d.check(d.current(context[i]), buses[i]);
    d.check(d.release(buffer[i]), buses[i]);
  }
}

}  // namespace

int main(int argc, char **argv) {
  const std::vector<std::string> names(argv + std::min(argc, 2), argv + argc);
  const std::string kind = argc > 1 ? argv[1] : "";
  if (kind == "host") {
    measure_host(names);
  } else if (kind == "cuda") {
    measure_cuda(names);
  } else {
    fail("usage: measure host|cuda NAME...");
  }
  return 0;
}
