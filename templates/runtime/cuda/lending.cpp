#include "cuda/lending.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/clock.h"
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
  // For ncclCommRegister: the ranks that registered the buffer, once for each time, and the number of its allocation then.
  std::vector<const void *> holders;
  uint64_t allocation = 0;

  bool serves(const void *holder) const {
    return allocation == 0 || std::find(holders.begin(), holders.end(), holder) != holders.end();
  }
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

uint64_t asked(int attribute, Address at) {
  uint64_t value = 0;
  return driver().pointer_attribute(&value, attribute, at) == 0 ? value : 0;
}

// Called with the mutex held; the end if no buffer has this byte.
using Found = std::map<Address, Buffer>::iterator;
Found find_at(Registry &all, Address at) {
  auto found = all.buffers.upper_bound(at);
  if (found == all.buffers.begin()) return all.buffers.end();
  --found;
  return at - found->first < found->second.bytes ? found : all.buffers.end();
}

// The same; null if no buffer of this rank has all of it, or the one that was registered there has been freed.
const Buffer *find_lent(Registry &all, const void *memory, uint64_t bytes, Context context, const void *holder) {
  const auto at = reinterpret_cast<Address>(memory);
  const Found found = find_at(all, at);
  if (found == all.buffers.end()) return nullptr;
  const auto &[begin, buffer] = *found;
  if (buffer.context != context || bytes > buffer.bytes - (at - begin) || !buffer.serves(holder)) return nullptr;
  return buffer.allocation == 0 || buffer.allocation == asked(kBufferNumber, at) ? &buffer : nullptr;
}

// The allocation of cuMemAlloc with this memory, as others may read it; no bytes if there is none.
Buffer describe(const Driver &cu, Address at, uint64_t bytes, Context context, bool abroad) {
  Buffer made = {};
  const Address begin = asked(kRangeBegin, at);
  const uint64_t whole = asked(kRangeBytes, at);
  if (asked(kIsPlainAllocation, at) == 0 || asked(kContextOf, at) != reinterpret_cast<uint64_t>(context)) return made;
  made.allocation = asked(kBufferNumber, at);
  if (begin == 0 || begin > at || at - begin > whole || bytes > whole - (at - begin) || made.allocation == 0) return made;
  made.bytes = whole;
  made.context = context;
  made.lent.begin = begin;
  made.lent.bytes = whole;
  if (abroad && cu.ipc_get(&made.lent.handle, begin) == 0) made.lent.number = 1;
  return made;
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
  // The creation of a communicator reports a wrong value.
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
  all.buffers[made.begin] = {bytes, context, made, {}, 0};
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
    if (found == all.buffers.end() || found->second.allocation != 0)
      return fail(ncclInvalidArgument, "%p is not where a buffer of ncclMemAlloc begins, or was freed before", memory);
    freed = std::move(found->second);
    all.buffers.erase(found);
  }
  if (freed.lent.number == 0) return check(driver().release(at), "freeing GPU memory");
  // Unmapping does not wait for kernels, as freeing does on which programs may count. Where the GPU cannot be waited for,
  // kernels here or elsewhere may still read: then the memory stays.
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

bool register_buffer(const void *memory, uint64_t bytes, Context context, bool abroad, const void *holder) {
  const Driver &cu = driver();
  const auto at = reinterpret_cast<Address>(memory);
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Found found = find_at(all, at);
  const bool is_known = found != all.buffers.end();
  if (is_known && found->second.allocation == 0) return true;  // of ncclMemAlloc
  if (!is_known || found->second.allocation != asked(kBufferNumber, at)) {
    const Current current(context);
    const Uncaptured uncaptured;  // other threads may capture graphs
    Buffer made = describe(cu, at, bytes, context, abroad);
    if (made.bytes == 0) return false;
    if (made.lent.number != 0) made.lent.number = ++all.numbers;
    // The memory that was registered there has been freed.
    all.buffers.erase(all.buffers.lower_bound(made.lent.begin), all.buffers.lower_bound(made.lent.begin + made.bytes));
    found = all.buffers.emplace(made.lent.begin, std::move(made)).first;
  }
  found->second.holders.push_back(holder);
  return true;
}

uint64_t withdraw_buffer(const void *memory, const void *holder) {
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Found found = find_at(all, reinterpret_cast<Address>(memory));
  if (found == all.buffers.end() || found->second.allocation == 0 || !found->second.serves(holder)) return 0;
  Buffer &buffer = found->second;
  buffer.holders.erase(std::find(buffer.holders.begin(), buffer.holders.end(), holder));
  const uint64_t number = buffer.serves(holder) ? 0 : buffer.lent.number;
  if (buffer.holders.empty()) all.buffers.erase(found);
  return number;
}

void withdraw_all(const void *holder) {
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto one = all.buffers.begin(); one != all.buffers.end();) {
    Buffer &buffer = one->second;
    buffer.holders.erase(std::remove(buffer.holders.begin(), buffer.holders.end(), holder), buffer.holders.end());
    one = buffer.allocation != 0 && buffer.holders.empty() ? all.buffers.erase(one) : std::next(one);
  }
}

LentCall lent_by(const Call &call, uint32_t nranks, Context context, const void *holder) {
  const CollectiveTraits &row = traits(call.collective);
  const uint64_t block = bytes_of(call);
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Buffer *const input = find_lent(all, call.input, row.input_per_rank ? block * nranks : block, context, holder);
  const Buffer *const output = find_lent(all, call.output, row.output_per_rank ? block * nranks : block, context, holder);
  LentCall lent;
  lent.which = (input != nullptr ? kLentInput : 0) | (output != nullptr ? kLentOutput : 0);
  if (input != nullptr) lent.input = input->lent;
  if (output != nullptr) lent.output = output->lent;
  return lent;
}

LentBuffer find_buffer(const void *memory, uint64_t bytes, Context context, const void *holder) {
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Buffer *const found = find_lent(all, memory, bytes, context, holder);
  return found == nullptr ? LentBuffer() : found->lent;
}

}  // namespace collc::cuda
