/* Preloaded: the name of the library that calls listen() goes into the file LISTENERS, a line for each call. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int listen(int socket, int backlog) {
  int (*real)(int, int);
  Dl_info caller;
  const char *file = getenv("LISTENERS");
  int log = file != NULL ? open(file, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (log >= 0) {
    if (dladdr(__builtin_return_address(0), &caller) != 0) dprintf(log, "%s\n", caller.dli_fname);
    close(log);
  }
  *(void **)&real = dlsym(RTLD_NEXT, "listen");
  return real(socket, backlog);
}
