/* The NCCL API that a collc library serves: NCCL 2.30.7's names, numbers and calling conventions, in C.
 *
 * A program written for NCCL compiles against this header or against NVIDIA's; both describe the same binary interface.
 * Streams are opaque here, so that host programs need no CUDA headers; on the host target they are ignored.
 */
#ifndef COLLC_NCCL_H_
#define COLLC_NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_COMM_NULL NULL
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;

#ifndef COLLC_STREAM_T
#define COLLC_STREAM_T
typedef struct CUstream_st *cudaStream_t;
#endif

typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

/* Append-only: a caller compiled against another version passes its own `size`. */
typedef struct ncclConfig_v23000 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
} ncclConfig_t;

#define NCCL_CONFIG_MAGIC 0xcafebeef
#define NCCL_CONFIG_INITIALIZER                                                                    \
  {sizeof(ncclConfig_t),  NCCL_CONFIG_MAGIC,     NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                            \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                            \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                            \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                            \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                            \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT}

typedef enum {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

#ifndef COLLC_API
#define COLLC_API
#endif

/* Every function is there as ncclName (weak) and as pncclName. */
#define COLLC_DECLARE(result, name, arguments) \
  COLLC_API result nccl##name arguments;       \
  COLLC_API result pnccl##name arguments

/* Library */
COLLC_DECLARE(ncclResult_t, GetVersion, (int *version));
COLLC_DECLARE(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId));
COLLC_DECLARE(const char *, GetErrorString, (ncclResult_t result));
COLLC_DECLARE(const char *, GetLastError, (ncclComm_t comm));

/* Communicators */
COLLC_DECLARE(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
COLLC_DECLARE(ncclResult_t, CommInitRankConfig,
              (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config));
COLLC_DECLARE(ncclResult_t, CommInitRankScalable,
              (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config));
COLLC_DECLARE(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int *devlist));
COLLC_DECLARE(ncclResult_t, CommFinalize, (ncclComm_t comm));
COLLC_DECLARE(ncclResult_t, CommDestroy, (ncclComm_t comm));
COLLC_DECLARE(ncclResult_t, CommAbort, (ncclComm_t comm));
COLLC_DECLARE(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError));
COLLC_DECLARE(ncclResult_t, CommCount, (const ncclComm_t comm, int *count));
COLLC_DECLARE(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int *device));
COLLC_DECLARE(ncclResult_t, CommUserRank, (const ncclComm_t comm, int *rank));

COLLC_DECLARE(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
COLLC_DECLARE(ncclResult_t, CommShrink,
              (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,
               int shrinkFlags));

/* More ranks: those that are there give the id of ncclCommGetUniqueId (one of them, the others NULL) and rank -1, those that
 * join no communicator, the id and their rank. */
COLLC_DECLARE(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId));
COLLC_DECLARE(ncclResult_t, CommGrow,
              (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm, ncclConfig_t *config));

/* Ends the calls of a communicator, which then can be split, shrunk or destroyed */
COLLC_DECLARE(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags));
/* No calls until it is resumed; its memory stays */
COLLC_DECLARE(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags));
COLLC_DECLARE(ncclResult_t, CommResume, (ncclComm_t comm));
COLLC_DECLARE(ncclResult_t, CommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value));

/* Windows are NULL: peers do not read them */
COLLC_DECLARE(ncclResult_t, CommWindowRegister, (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags));
COLLC_DECLARE(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
COLLC_DECLARE(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr));

/* Memory. Buffers of ncclMemAlloc may be used like any other; registration has nothing to do on the host. */
COLLC_DECLARE(ncclResult_t, MemAlloc, (void **ptr, size_t size));
COLLC_DECLARE(ncclResult_t, MemFree, (void *ptr));
COLLC_DECLARE(ncclResult_t, CommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle));
COLLC_DECLARE(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle));

/* Reductions that multiply every rank's input first */
COLLC_DECLARE(ncclResult_t, RedOpCreatePreMulSum,
              (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm));
COLLC_DECLARE(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Groups */
COLLC_DECLARE(ncclResult_t, GroupStart, (void));
COLLC_DECLARE(ncclResult_t, GroupEnd, (void));

/* Collectives */
COLLC_DECLARE(ncclResult_t, AllReduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
               cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Broadcast,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Bcast,
              (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Reduce,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
               ncclComm_t comm, cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, AllGather,
              (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, ReduceScatter,
              (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
               cudaStream_t stream));

COLLC_DECLARE(ncclResult_t, AlltoAll,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
               cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Gather,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Scatter,
              (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
               cudaStream_t stream));

/* Between two ranks; those that depend on each other belong into one group */
COLLC_DECLARE(ncclResult_t, Send,
              (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream));
COLLC_DECLARE(ncclResult_t, Recv,
              (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream));

#ifdef __cplusplus
}
#endif
#endif /* COLLC_NCCL_H_ */
