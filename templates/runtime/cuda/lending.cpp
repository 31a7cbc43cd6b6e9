#include "cuda/lending.h"

#include <pthread.h>
#include <time.h>

#include <cinttypes>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/element.h"
#include "base/environment.h"
#include "base/log.h"
#include "collc/collective_traits.h"
#include "cuda/loan_desk.h"

namespace collc::cuda {
namespace {

constexpr int64_t kPatienceForReturnsMs = 2000;

struct Buffer {
  uint64_t bytes;
  Context context;  // whose GPU has it
  LentBuffer lent;  // number 0: memory as any other, which other processes cannot map
};

struct Registry {
  std::mutex mutex;
  std::map<Address, Buffer> buffers;
  uint64_t numbers = 0;  // of buffers that others can map
};
// A child has the lock free and the map whole, whatever threads its parent had.
Registry &registry() {
  static auto *const only = new Registry;  // outlives every thread
  static const int registered =
      pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, [] { registry().mutex.unlock(); });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

// Called with the mutex held; null if no buffer has all of it.
const Buffer *find_lent(const Registry &all, const void *memory, uint64_t bytes, Context context) {
  const auto at = reinterpret_cast<Address>(memory);
  auto found = all.buffers.upper_bound(at);
  if (found == all.buffers.begin()) return nullptr;
  --found;
  const auto &[begin, buffer] = *found;
  const bool within = at - begin <= buffer.bytes && bytes <= buffer.bytes - (at - begin);
  return buffer.context == context && within ? &buffer : nullptr;
}

// For all GPUs of this process that can have access: peer access of contexts does not count there.
bool grant_to_peers(const Driver &cu, DeviceNumber owner, const VirtualMemory &memory) {
  int devices = 0;
  if (cu.device_count(&devices) != 0) return false;
  for (int d = 0; d < devices; ++d) {
    Device peer;
    int reachable = 0;
    if (cu.device_get(&peer.number, d) != 0) return false;
    if (peer.number == owner || cu.can_access_peer(&reachable, peer.number, owner) != 0 || reachable == 0) continue;
    if (!grant(peer, memory)) return false;
  }
  return true;
}

// Memory that other processes can map. `result`: the driver's, where it has none.
bool allocate_shareable(const Driver &cu, size_t bytes, LentBuffer *made, Result *result) {
  Device device;
  *result = 0;
  if (!kernels_read_buffers() || cu.context_device(&device.number) != 0 || !has_descriptors(device)) return false;
  VirtualMemory memory;
  *result = make_shareable(device, bytes, &memory, &made->memory);
  if (*result != 0) return false;
  made->begin = memory.at;
  made->bytes = memory.bytes;
  if (grant_to_peers(cu, device.number, memory)) return true;
  unmap(memory);
  return false;
}

// Readers in other processes give back soon what was freed, unless they are stopped.
bool await_returns() {
  const int64_t start = now_ms();
  while (awaits_returned_memory()) {
    if (now_ms() - start > kPatienceForReturnsMs) return false;
    const timespec nap{0, 1000000};
    nanosleep(&nap, nullptr);
  }
  return true;
}

}  // namespace

void *allocate_buffer(size_t bytes) {
  const Driver *cu = nullptr;
  Context context = nullptr;
  Lending wish;
  if (!load_driver(&cu).ok() || cu->context_current(&context) != 0) return nullptr;
  const Uncaptured uncaptured;  // other threads may capture graphs
  LentBuffer made;
  Result result = 0;
  // A wrong value is told where a communicator is made.
  const bool shares = read_lending(&wish).ok() && wish.lends && wish.abroad;
  bool shareable = shares && allocate_shareable(*cu, bytes, &made, &result);
  if (!shareable && result == kOutOfMemory && awaits_returned_memory() && await_returns())
    shareable = allocate_shareable(*cu, bytes, &made, &result);
  if (!shareable) {
    if (shares && kernels_read_buffers() && result != kOutOfMemory)
      log(LogLevel::kInfo, "a buffer of ncclMemAlloc cannot be mapped by other processes: no file descriptor of GPU memory");
    made = {};
    if (cu->allocate(&made.begin, bytes) != 0) return nullptr;
  }
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (shareable) made.number = ++all.numbers;
  all.buffers[made.begin] = {bytes, context, made};
  return reinterpret_cast<void *>(made.begin);
}

Status release_buffer(void *memory) {
  if (memory == nullptr) return {};
  Registry &all = registry();
  const auto at = reinterpret_cast<Address>(memory);
  Buffer freed;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.buffers.find(at);
    if (found == all.buffers.end())
      return fail(ncclInvalidArgument, "%p is not where a buffer of ncclMemAlloc begins, or was freed before", memory);
    freed = std::move(found->second);
    all.buffers.erase(found);
  }
  if (freed.lent.number == 0) return check(driver().release(at), "freeing GPU memory");
  // Unmapping does not wait for kernels, as freeing does on which programs may count. Where the GPU cannot be waited for, kernels
  // here or elsewhere may still read: then the memory stays.
  Result waited = 0;
  {
    const Current current(freed.context);
    const Uncaptured uncaptured;
    waited = driver().context_synchronize();
  }
  if (waited != 0) {
    log(LogLevel::kWarn,
        "a buffer of ncclMemAlloc of %" PRIu64 " bytes is not given back: waiting for the GPU ended with error %d",
        freed.lent.bytes, waited);
    return {};
  }
  forget_buffer(freed.lent.number);
  unmap({at, freed.lent.bytes});
  return {};
}

Status read_lending(Lending *wish) {
  double lends = 1, abroad = 0;
  COLLC_RETURN_IF_FAILED(read_number("COLLC_DIRECT", 0, 1, 1, &lends));
  COLLC_RETURN_IF_FAILED(read_number("COLLC_DIRECT_PROCESSES", 0, 1, 0, &abroad));
  wish->lends = lends != 0;
  wish->abroad = abroad != 0;
  return {};
}

LentCall lent_by(const Call &call, uint32_t nranks, Context context) {
  const CollectiveTraits &row = traits(call.collective);
  const uint64_t block = call.count * element_bytes(call.type);
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Buffer *const input = find_lent(all, call.input, row.input_per_rank ? block * nranks : block, context);
  const Buffer *const output = find_lent(all, call.output, row.output_per_rank ? block * nranks : block, context);
  LentCall lent;
  lent.which = (input != nullptr ? kLentInput : 0) | (output != nullptr ? kLentOutput : 0);
  if (input != nullptr) lent.input = input->lent;
  if (output != nullptr) lent.output = output->lent;
  return lent;
}

LentBuffer find_buffer(const void *memory, uint64_t bytes, Context context) {
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Buffer *const found = find_lent(all, memory, bytes, context);
  return found == nullptr ? LentBuffer() : found->lent;
}

}  // namespace collc::cuda
