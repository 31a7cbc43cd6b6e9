/* A tuner plugin for NCCL: looks a call up in the table and sets the cost of the table's choice to 0, so NCCL takes it. */
#include "table.h"
#include "tuner_api.h"

#define COLLC_PLUGIN __attribute__((visibility("default")))

/* The context of a communicator: its numbers of ranks and nodes in one word. NCCL passes it to every call. */
typedef struct {
  uint32_t ranks;
  uint32_t nodes;
} Shape;

static void *context_of(Shape shape) { return (void *)(uintptr_t)(((uint64_t)shape.nodes << 32) | shape.ranks); }

static Shape shape_of(void *context) {
  const uint64_t number = (uint64_t)(uintptr_t)context;
  const Shape shape = {(uint32_t)number, (uint32_t)(number >> 32)};
  return shape;
}

static const TunerTable *find(Shape shape, int function) {
  for (uint32_t i = 0; i < collc_tuner_tables; ++i) {
    const TunerTable *table = &collc_tuner_table[i];
    if (table->ranks == shape.ranks && table->nodes == shape.nodes && (int)table->function == function) return table;
  }
  return NULL;
}

static ncclResult_t begin(void **context, size_t ranks, size_t nodes, TunerLogger log) {
  if (context == NULL) return ncclInvalidArgument;
  /* No table is for a communicator with larger numbers: its context is NULL, and NCCL chooses. */
  const Shape shape = {(uint32_t)ranks, (uint32_t)nodes};
  *context = ranks > UINT32_MAX || nodes > UINT32_MAX ? NULL : context_of(shape);
  uint32_t held = 0;
  for (uint32_t i = 0; i < collc_tuner_tables; ++i) {
    held += collc_tuner_table[i].ranks == ranks && collc_tuner_table[i].nodes == nodes;
  }
  if (log != NULL) {
    log(kTunerInfo, kTunerSubsystem, __FILE__, __LINE__, "%s: %u collectives are tuned for %zu ranks on %zu nodes",
        collc_tuner_name, held, ranks, nodes);
  }
  return ncclSuccess;
}

static ncclResult_t choose(void *context, int function, size_t bytes, float **costs, int algorithms, int protocols,
                           int *channels) {
  const TunerTable *table = find(shape_of(context), function);
  if (table == NULL || costs == NULL) return ncclSuccess;
  const TunerRow *row = NULL;
  for (uint32_t i = table->first; i < table->first + table->count && collc_tuner_row[i].least <= bytes; ++i) {
    row = &collc_tuner_row[i];
  }
  if (row == NULL) return ncclSuccess;
  /* In spite of its type, the argument is the address of a two-dimensional array (NCCL casts it). */
  float *cost = (float *)(void *)costs;
  for (uint32_t i = row->first; i < row->first + row->count; ++i) {
    const TunerChoice choice = collc_tuner_choice[i];
    if (choice.algorithm >= algorithms || choice.protocol >= protocols) continue;
    float *entry = &cost[choice.algorithm * protocols + choice.protocol];
    if (*entry < 0.0F) continue;
    *entry = 0.0F;
    if (channels != NULL && choice.channels > 0) *channels = choice.channels;
    break;
  }
  return ncclSuccess;
}

static ncclResult_t init_by_size(size_t ranks, size_t nodes, TunerLogger log, void **context) {
  return begin(context, ranks, nodes, log);
}

static ncclResult_t init_by_id(void **context, uint64_t comm_id, size_t ranks, size_t nodes, TunerLogger log,
                               void *nvl_domain_info, void *constants) {
  (void)comm_id, (void)nvl_domain_info, (void)constants;
  return begin(context, ranks, nodes, log);
}

/* Aggregated calls (pipe_ops) and calls with registered buffers use the same tables. */
static ncclResult_t choose_v3(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                              int protocols, int *channels) {
  (void)pipe_ops;
  return choose(context, function, bytes, costs, algorithms, protocols, channels);
}

static ncclResult_t choose_v4(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms,
                              int protocols, int registered, int *channels) {
  (void)pipe_ops, (void)registered;
  return choose(context, function, bytes, costs, algorithms, protocols, channels);
}

static ncclResult_t end(void *context) {
  (void)context;
  return ncclSuccess;
}

extern const TunerV3 ncclTunerPlugin_v3;
extern const TunerV4 ncclTunerPlugin_v4;
extern const TunerV5 ncclTunerPlugin_v5;
extern const TunerV6 ncclTunerPlugin_v6;
COLLC_PLUGIN const TunerV3 ncclTunerPlugin_v3 = {collc_tuner_name, init_by_size, choose_v3, end};
COLLC_PLUGIN const TunerV4 ncclTunerPlugin_v4 = {collc_tuner_name, init_by_size, choose_v4, end};
COLLC_PLUGIN const TunerV5 ncclTunerPlugin_v5 = {collc_tuner_name, init_by_id, choose_v4, end};
COLLC_PLUGIN const TunerV6 ncclTunerPlugin_v6 = {collc_tuner_name, init_by_id, choose_v4, end, NULL};
