#include "cuda/lending.h"

#include <pthread.h>

#include <map>
#include <mutex>
#include <new>

#include "base/element.h"
#include "base/environment.h"
#include "collc/collective_traits.h"

namespace collc::cuda {
namespace {

struct Buffer {
  uint64_t bytes;
  Context context;  // whose GPU has it
};

struct Registry {
  std::mutex mutex;
  std::map<Address, Buffer> buffers;
};
// A child has the lock free and the map whole, whatever threads its parent had.
Registry &registry() {
  static auto *const only = new Registry;  // outlives every thread
  static const int registered =
      pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, [] { registry().mutex.unlock(); });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

bool is_lent(const Registry &all, const void *memory, uint64_t bytes, Context context) {
  const auto at = reinterpret_cast<Address>(memory);
  auto found = all.buffers.upper_bound(at);
  if (found == all.buffers.begin()) return false;
  --found;
  const auto &[begin, buffer] = *found;
  return buffer.context == context && at - begin <= buffer.bytes && bytes <= buffer.bytes - (at - begin);
}

}  // namespace

void *allocate_buffer(size_t bytes) {
  const Driver *cu = nullptr;
  Address at = 0;
  Context context = nullptr;
  if (!load_driver(&cu).ok() || cu->allocate(&at, bytes) != 0) return nullptr;
  cu->context_current(&context);
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.buffers[at] = {bytes, context};
  return reinterpret_cast<void *>(at);
}

Status release_buffer(void *memory) {
  if (memory == nullptr) return {};
  Registry &all = registry();
  const auto at = reinterpret_cast<Address>(memory);
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.buffers.erase(at) == 0)
      return fail(ncclInvalidArgument, "%p is not where a buffer of ncclMemAlloc begins, or was freed before", memory);
  }
  return check(driver().release(at), "freeing GPU memory");
}

Status read_lending(bool *lends) {
  double wish = 1;
  const Status read = read_number("COLLC_DIRECT", 0, 1, 1, &wish);
  *lends = wish != 0;
  return read;
}

uint64_t lent_by(const Call &call, uint32_t nranks, Context context) {
  const CollectiveTraits &row = traits(call.collective);
  const uint64_t block = call.count * element_bytes(call.type);
  Registry &all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return (is_lent(all, call.input, row.input_per_rank ? block * nranks : block, context) ? kLentInput : 0) |
         (is_lent(all, call.output, row.output_per_rank ? block * nranks : block, context) ? kLentOutput : 0);
}

}  // namespace collc::cuda
