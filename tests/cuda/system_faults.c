// Preloaded: wraps the system calls that a creation needs, and makes one of them fail once. Private mappings always work.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static char wanted[32];
static atomic_int before = -1, failed = 0;

// Makes the call `name` fail that follows `calls` others of that name.
void plant_fault(const char *name, int calls) {
  strncpy(wanted, name, sizeof wanted - 1);
  atomic_store(&failed, 0);
  atomic_store(&before, calls);
}
// Returns whether the call has failed. Nothing fails from now on.
int end_of_fault(void) {
  atomic_store(&before, -1);
  return atomic_load(&failed);
}

// The mock driver's own calls do not fail: they are no calls of the system in a real one.
static int is_of_the_driver(const void *caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "libcuda") != NULL;
}

static int fails_for(const void *caller, const char *name) {
  if (is_of_the_driver(caller)) return 0;
  if (atomic_load(&before) < 0 || strcmp(wanted, name) != 0 || atomic_fetch_sub(&before, 1) != 0) return 0;
  atomic_store(&failed, 1);
  errno = ENOMEM;
  return 1;
}

#define fails(name) fails_for(__builtin_return_address(0), name)
#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int memfd_create(const char *name, unsigned flags) {
  REAL(memfd_create);
  return fails("memfd_create") ? -1 : real(name, flags);
}
int posix_fallocate(int fd, off_t at, off_t bytes) {
  REAL(posix_fallocate);
  return fails("posix_fallocate") ? ENOSPC : real(fd, at, bytes);
}
void *mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset) {
  REAL(mmap);
  const int shared = fd >= 0 && (flags & MAP_TYPE) == MAP_SHARED;
  return shared && fails("mmap") ? MAP_FAILED : real(at, bytes, rights, flags, fd, offset);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  REAL(pthread_create);
  return fails("pthread_create") ? EAGAIN : real(thread, attributes, body, argument);
}
int bind(int fd, const struct sockaddr *address, socklen_t bytes) {
  REAL(bind);
  return fails("bind") ? -1 : real(fd, address, bytes);
}
int listen(int fd, int waiting) {
  REAL(listen);
  return fails("listen") ? -1 : real(fd, waiting);
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  REAL(sendmsg);
  return fails("sendmsg") ? -1 : real(fd, message, flags);
}
ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  REAL(recvmsg);
  return fails("recvmsg") ? -1 : real(fd, message, flags);
}
