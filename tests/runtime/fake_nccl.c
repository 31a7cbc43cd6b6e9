/* Plays the real NCCL for the tests of forwarding: counts its calls, and ends the process when it is handed something that
 * it did not make. Its all-reduce leaves 7 in every byte.
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm {
  unsigned int magic;
  int nranks, rank, open;
};
enum { MAGIC = 0x0ea1c0de };

int fake_calls, fake_groups, fake_made, fake_destroyed, fake_depth;

static ncclResult_t own(ncclComm_t comm) {
  if (comm == NULL || comm->magic != MAGIC) {
    fprintf(stderr, "fake NCCL: a handle that is not mine\n");
    _Exit(99);
  }
  ++fake_calls;
  return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version) {
  *version = 22703;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 0x5a, sizeof *id);
  return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "fake: fine" : "fake: bad"; }
const char *ncclGetLastError(ncclComm_t comm) { return comm == NULL ? "" : "fake"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  if (id.internal[0] != 0x5a || (config != NULL && config->magic != NCCL_CONFIG_MAGIC)) return ncclInvalidArgument;
  *comm = malloc(sizeof **comm);
  (*comm)->magic = MAGIC, (*comm)->nranks = nranks, (*comm)->rank = rank;
  ++fake_made;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  own(comm);
  ++fake_destroyed;
  comm->magic = 0;
  free(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  *error = ncclSuccess;
  return own(comm);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  *count = comm->nranks;
  return own(comm);
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return own(comm);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  ncclUniqueId id;
  own(comm);
  (void)key;
  *made = NULL;
  ncclGetUniqueId(&id);
  return color < 0 ? ncclSuccess : ncclCommInitRankConfig(made, 1, id, 0, config);
}
ncclResult_t ncclGroupStart(void) {
  ++fake_groups;
  ++fake_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
  --fake_depth;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  (void)send, (void)type, (void)op, (void)stream;
  memset(recv, 7, count);
  return own(comm);
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags) {
  (void)buffer, (void)size, (void)flags;
  *window = (ncclWindow_t)(void *)comm;
  return own(comm);
}
