/* Preloaded: with THREADS=n in the environment, threads beyond the next n cannot be started. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  static int started;
  const char *most = getenv("THREADS");
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (most != NULL && started++ >= atoi(most)) return EAGAIN;
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, body, argument);
}
