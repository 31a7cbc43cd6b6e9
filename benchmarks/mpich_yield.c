/* For LD_PRELOAD under MPICH with more ranks than cores: its waits call UCX's progress in a tight loop and never give the
 * core away, so that every hop lasts as long as the scheduler lets a process run. Here a round without progress yields. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

typedef unsigned (*progress_function)(void *worker);

unsigned ucp_worker_progress(void *worker) {
  static progress_function next;
  unsigned events;
  if (next == 0) next = (progress_function)dlsym(RTLD_NEXT, "ucp_worker_progress");
  events = next(worker);
  if (events == 0) sched_yield();
  return events;
}
