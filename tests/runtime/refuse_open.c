/* Preloaded: after the first tries of a process, it can open other processes' descriptors only every third time. Says at
 * the end how often it could not.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tries, refused;

int open(const char *path, int flags, ...) {
  int (*real)(const char *, int, ...);
  va_list rest;
  int mode;
  *(void **)&real = dlsym(RTLD_NEXT, "open");
  va_start(rest, flags);
  mode = va_arg(rest, int);
  va_end(rest);
  if (strncmp(path, "/proc/", 6) == 0 && strstr(path, "/fd/") != NULL && ++tries > atoi(getenv("FIRST_TRIES")) &&
      tries % 3 != 0) {
    ++refused;
    errno = EMFILE;
    return -1;
  }
  return real(path, flags, mode);
}

__attribute__((destructor)) static void say(void) {
  if (refused > 0) fprintf(stderr, "refused %d times\n", refused);
}
