/* Preloaded: membarrier fails. REFUSE=all: in every process; =one: in the first that asks, of those forked from this one;
 * =late: only once it has been registered for; =removals: where a communicator is removed; =none: nowhere. With ENDLESS=1 a
 * futex waits without a time limit, so that a wake that gets lost is never made up for. Says at the end how often it refused;
 * barriers() says how often the process asked for one.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int refused, asked;
static atomic_int *chosen; /* process, shared with those forked from this one */

__attribute__((constructor)) static void begin(void) {
  chosen = mmap(NULL, sizeof *chosen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (chosen == MAP_FAILED) abort();
}

int barriers(void) { return asked; }

static int is(const char *variable, const char *value) {
  const char *text = getenv(variable);
  return text != NULL && strcmp(text, value) == 0;
}

static int refuses(long command) {
  int nobody = 0;
  if (is("REFUSE", "late")) return command == MEMBARRIER_CMD_GLOBAL_EXPEDITED;
  if (is("REFUSE", "removals")) return command == MEMBARRIER_CMD_PRIVATE_EXPEDITED;
  if (is("REFUSE", "one")) return atomic_compare_exchange_strong(chosen, &nobody, getpid()) || nobody == getpid();
  return is("REFUSE", "all");
}

long syscall(long number, ...) {
  long (*real)(long, ...);
  long a[6];
  va_list rest;
  *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  va_start(rest, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_membarrier && a[0] == MEMBARRIER_CMD_GLOBAL_EXPEDITED) ++asked;
  if (number == SYS_membarrier && refuses(a[0])) {
    ++refused;
    errno = is("REFUSE", "late") ? EPERM : ENOSYS;
    return -1;
  }
  if (number == SYS_futex && a[1] == FUTEX_WAIT && is("ENDLESS", "1")) a[3] = 0;
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

__attribute__((destructor)) static void say(void) {
  if (refused > 0) fprintf(stderr, "refused %d times\n", refused);
}
