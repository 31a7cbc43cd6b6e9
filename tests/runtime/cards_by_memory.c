/* Loaded as UCX by COLLC_UCX: the real one, which this library needs, on a machine whose RDMA cards are its memory. Where the
 * InfiniBand transports are asked for, shared memory comes up in their place, so that an engine that asks for RDMA alone
 * works here, and what else UCX opens can be seen. CARDS_AND adds transports to it, so that a test can plant a port. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *real(const char *name) { return dlsym(dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL), name); }

int8_t ucp_config_modify(void *config, const char *name, const char *value) {
  int8_t (*modify)(void *, const char *, const char *);
  const char *more = getenv("CARDS_AND");
  char transports[64];
  *(void **)&modify = real("ucp_config_modify");
  if (strcmp(name, "TLS") == 0 && strcmp(value, "ib") == 0) {
    snprintf(transports, sizeof transports, "posix%s%s", more != NULL ? "," : "", more != NULL ? more : "");
    value = transports;
  }
  return modify(config, name, value);
}

/* Shared memory does not notice the end of a peer, and UCX takes no transport that does not where that is asked for. */
int8_t ucp_ep_create(void *worker, const uint64_t *parameters, void **endpoint) {
  enum { kErrorMode = 1 << 1, kMost = 32 };
  int8_t (*create)(void *, const uint64_t *, void **);
  uint64_t mine[kMost];
  *(void **)&create = real("ucp_ep_create");
  memcpy(mine, parameters, 13 * sizeof *mine); /* ucp_ep_params_t of UCX 1.13 and later */
  if (getenv("COLLC_UCX_UNSAFE_TCP") == NULL || *getenv("COLLC_UCX_UNSAFE_TCP") == 0) mine[0] &= ~(uint64_t)kErrorMode;
  return create(worker, mine, endpoint);
}
