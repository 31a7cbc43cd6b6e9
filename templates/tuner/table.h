/* The table of a tuner plugin: algorithm and protocol by collective, communicator and size. */
#ifndef COLLC_TUNER_TABLE_H_
#define COLLC_TUNER_TABLE_H_

#include <stdint.h>

/* NCCL's numbers of an algorithm and a protocol. If `channels` is 0, NCCL chooses the number of channels. */
typedef struct {
  int8_t algorithm;
  int8_t protocol;
  int16_t channels;
} TunerChoice;

/* From `least` bytes on, the first of these choices that NCCL can use. If it can use none, NCCL chooses. */
typedef struct {
  uint64_t least;
  uint32_t first;
  uint32_t count;
} TunerRow;

/* The rows of one collective (ncclFunc_t) on communicators of `ranks` ranks on `nodes` nodes. The first row is from 0 bytes. */
typedef struct {
  uint32_t function;
  uint32_t ranks;
  uint32_t nodes;
  uint32_t first;
  uint32_t count;
} TunerTable;

extern const char collc_tuner_name[];
extern const uint32_t collc_tuner_tables;
extern const TunerTable collc_tuner_table[];
extern const TunerRow collc_tuner_row[];
extern const TunerChoice collc_tuner_choice[];

#endif /* COLLC_TUNER_TABLE_H_ */
