/* NCCL's tuner interfaces 3 to 6 (NVIDIA/nccl, src/include/plugin/tuner), as much of them as a plugin needs.
 *
 * NCCL 2.22 and 2.23 know version 3, 2.24 to 2.27 also 4, 2.28 and 2.29 also 5, 2.30 and newer also 6; each takes the
 * newest version that it knows and the plugin has. Older ones have no table of costs, so they are not served.
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
/* `costs` is a table of algorithms x protocols of microseconds, negative where a pair cannot be used: the least wins. */
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
  TunerChunk chunk; /* NULL: NCCL's own */
} TunerV6;

#endif /* COLLC_TUNER_API_H_ */
