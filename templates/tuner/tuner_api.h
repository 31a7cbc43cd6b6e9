/* NCCL's tuner interfaces 3 to 6 (NVIDIA/nccl, src/include/plugin/tuner), as far as a plugin needs them.
 *
 * NCCL 2.22 and 2.23 support version 3, 2.24 to 2.27 also 4, 2.28 and 2.29 also 5, 2.30 and newer also 6. NCCL uses the
 * newest version that both it and the plugin have. Older NCCL has no table of costs, so the plugin does not support it.
 */
#ifndef COLLC_TUNER_API_H_
#define COLLC_TUNER_API_H_

#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

/* ncclFunc_t, ncclDebugLogLevel and the subsystem of the log, as numbers. */
enum { kTunerInfo = 3, kTunerSubsystem = 0x40 };

typedef void (*TunerLogger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

typedef ncclResult_t (*TunerInit)(size_t ranks, size_t nodes, TunerLogger log, void **context);
typedef ncclResult_t (*TunerInitById)(void **context, uint64_t comm_id, size_t ranks, size_t nodes, TunerLogger log,
                                      void *nvl_domain_info, void *constants);
/* `costs`: microseconds by algorithm and protocol; negative if the pair cannot be used. NCCL takes the lowest cost. */
typedef ncclResult_t (*TunerChoose)(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                                    int protocols, int *channels);
typedef ncclResult_t (*TunerChooseRegistered)(void *context, int function, size_t bytes, int pipe_ops, float **costs,
                                              int algorithms, int protocols, int registered, int *channels);
typedef ncclResult_t (*TunerEnd)(void *context);
typedef ncclResult_t (*TunerChunk)(void *context, int function, size_t bytes, int algorithm, int protocol, int channels,
                                   size_t *chunk);

typedef struct {
  const char *name;
  TunerInit init;
  TunerChoose choose;
  TunerEnd end;
} TunerV3;

typedef struct {
  const char *name;
  TunerInit init;
  TunerChooseRegistered choose;
  TunerEnd end;
} TunerV4;

typedef struct {
  const char *name;
  TunerInitById init;
  TunerChooseRegistered choose;
  TunerEnd end;
} TunerV5;

typedef struct {
  const char *name;
  TunerInitById init;
  TunerChooseRegistered choose;
  TunerEnd end;
  TunerChunk chunk; /* NULL: NCCL chooses */
} TunerV6;

#endif /* COLLC_TUNER_API_H_ */
