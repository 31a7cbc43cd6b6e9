// One kernel for each device verb: what the compiler makes of it is all that the kernel does, beside storing results.
#include "collc/cuda/device.h"
using namespace collc::cuda;
#define VERB(name) extern "C" __global__ void name

VERB(flag_store_)(uint64_t *to, uint64_t value) { flag_store(to, value); }
VERB(flag_poll_)(const uint64_t *from, uint64_t *to) { *to = flag_poll(from); }
// The plain accesses are data that the acquire must come before.
VERB(flag_acquire_)(const uint64_t *from, const Pack *data, Pack *to) {
  while (flag_poll(from) == 0) {
  }
  flag_acquire(from);
  store(to, load(data));
}
VERB(free_slot_)(uint64_t *to, uint64_t value) { free_slot(to, value); }
VERB(tell_bytes_)(uint64_t *to, uint64_t value) { tell_bytes(to, value); }
VERB(host_load_)(const uint32_t *from, uint32_t *to) { *to = host_load(from); }
VERB(host_store_)(uint32_t *to, uint32_t value) { host_store(to, value); }
VERB(load_pack)(const Pack *from, uint32_t *to) {
  const Pack pack = load(from);
  *to = pack.word[0] ^ pack.word[1] ^ pack.word[2] ^ pack.word[3];
}
VERB(store_pack)(Pack *to, uint32_t word) { store(to, Pack{{word, word, word, word}}); }
VERB(load_duo)(const Duo *from, uint32_t *to) {
  const Duo duo = load(from);
  *to = duo.word[0] ^ duo.word[1];
}
VERB(store_duo)(Duo *to, uint32_t word) { store(to, Duo{{word, word}}); }
VERB(ll_load_)(const Pack *from, uint32_t flag, uint32_t *to) {
  Duo data[2];
  const Pack *const lines[2] = {from, from + flag};
  const uint32_t flags[2] = {flag, flag + 1};
  const uint32_t there = ll_load(lines, flags, data);
  *to = there ^ data[0].word[0] ^ data[0].word[1] ^ data[1].word[0] ^ data[1].word[1];
}
VERB(ll_store_)(Pack *to, uint32_t word, uint32_t flag) { ll_store(to, Duo{{word, word}}, flag); }
#if !defined(COLLC_PRE_VOLTA)
VERB(ll128_load_)(const Pack *from, uint64_t flag, uint32_t *to) {
  Pack value[2];
  const bool there = ll128_load(from, flag, value);
  to[thread_index()] = there ? value[0].word[0] ^ value[0].word[2] ^ value[1].word[1] ^ value[1].word[3] : 0;
}
VERB(ll128_store_)(Pack *to, uint32_t word) {
  const Pack value[2] = {{{word, word, word, word}}, {{word, word, word, word}}};
  ll128_store(to, value);
}
VERB(warp_any_)(uint32_t *to, uint32_t word) { to[thread_index()] = warp_any(word == thread_index()); }
#endif
VERB(barrier_)(uint32_t *to) {
  to[thread_index()] = 1;
  barrier();
  to[thread_index() + 1] = 2;
}
VERB(barrier_or_)(uint32_t *to, uint32_t word) { to[thread_index()] = barrier_or(word == thread_index()); }
