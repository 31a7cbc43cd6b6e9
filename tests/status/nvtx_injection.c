/* A library that NVTX loads, by NVTX_INJECTION64_PATH: notes pushes and pops of ranges in the file NVTX_TEST.PID.
 * NVTX_TEST_REFUSES: it takes none. NVIDIA's nvtx3/nvtxDetail/nvtxTypes.h says what it gets.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*function)(void);
typedef struct {
  size_t bytes;
  int (*functions_of)(int module, function ***table, unsigned *size);
} callbacks;

static int depth;

static void note(const char *what, const char *text) {
  char path[4096];
  FILE *file;
  snprintf(path, sizeof path, "%s.%d", getenv("NVTX_TEST"), (int)getpid());
  file = fopen(path, "a");
  if (file == NULL) abort();
  fprintf(file, "%s %d %s\n", what, depth, text);
  fclose(file);
}

static int push(const char *text) {
  note("push", text);
  return depth++;
}

static int pop(void) {
  --depth;
  note("pop", "");
  return depth;
}

int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t)) {
  const callbacks *const found = table_of(1);
  static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
  function **table;
  unsigned size, module;
  if (found == NULL || found->bytes < sizeof *found || table_of(2) != NULL || table_of(3) == NULL) abort();
  if (getenv("NVTX_TEST_REFUSES") != NULL) return 0;
  /* As profilers do, for all modules. */
  for (module = 6; module > 0; --module)
    if (found->functions_of((int)module, &table, &size) != 1 || size != sizes[module] || table[0] != NULL ||
        table[size] != NULL)
      abort();
  if (found->functions_of(7, &table, &size) != 0 || found->functions_of(1, &table, &size) != 1) abort();
  *table[9] = (function)push;
  *table[11] = (function)pop;
  return 1;
}
