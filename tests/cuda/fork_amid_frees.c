/* A child is forked off again and again while other threads free what is no buffer, which takes the lock of the list of buffers
 * and no more of it. The child does so too: the lock must be free there. Returns how many children in turn could.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, SECONDS = 20, INVALID_ARGUMENT = 4 };
typedef int (*Release)(void *memory);
static int ended; /* read and written with __atomic */
static char no_buffer;
static Release release;

static void *free_nothing(void *unused) {
  while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) release(&no_buffer);
  return unused;
}

static int in_child(void) {
  alarm(SECONDS);
  return release(&no_buffer) != INVALID_ARGUMENT;
}

int forked_children(Release of_library, int children) {
  pthread_t threads[THREADS];
  int good = 0, started = 0;
  release = of_library;
  release(&no_buffer); /* the list is there before the first child */
  while (started < THREADS && pthread_create(&threads[started], NULL, free_nothing, NULL) == 0) ++started;
  while (started == THREADS && good < children) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) _exit(in_child());
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) break;
    ++good;
  }
  __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
  while (started > 0) pthread_join(threads[--started], NULL);
  return good;
}
