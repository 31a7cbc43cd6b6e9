/* Preloaded: a rank comes to harm at one point of a communicator's creation.
 *
 * HOLD_UP=AT:HOW. AT is "connect", where a rank fetches the shared memory, "read", where it tries what it can read of
 * other processes, or "call", where it calls another machine after the one whose process made the id; or "fetch", where it
 * copies the fifth chunk of another process, which is amid a call. HOW is "kill", "stop", or seconds to sleep; the first
 * time only.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static void come_to_harm(const char *at) {
  static int done;
  const char *wanted = getenv("HOLD_UP");
  const size_t size = strlen(at);
  if (done || wanted == NULL || strncmp(wanted, at, size) != 0 || wanted[size] != ':') return;
  done = 1;
  if (strcmp(wanted + size + 1, "kill") == 0) raise(SIGKILL);
  if (strcmp(wanted + size + 1, "stop") == 0) raise(SIGSTOP);
  usleep((useconds_t)(1e6 * atof(wanted + size + 1)));
}

/* glibc's name for the type of the address, which is a union of all kinds of pointers to one. */
int connect(int socket, __CONST_SOCKADDR_ARG address, socklen_t size) {
  const struct sockaddr *const to = address.__sockaddr__;
  int (*real)(int, const struct sockaddr *, socklen_t);
  static in_port_t first;
  *(void **)&real = dlsym(RTLD_NEXT, "connect");
  if (to->sa_family == AF_UNIX && strncmp(((const struct sockaddr_un *)to)->sun_path + 1, "collc-", 6) == 0)
    come_to_harm("connect");
  if (to->sa_family == AF_INET) {
    const in_port_t port = ((const struct sockaddr_in *)to)->sin_port;
    if (first == 0) first = port;
    if (port != first) come_to_harm("call");
  }
  return real(socket, to, size);
}

ssize_t process_vm_readv(pid_t process, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags) {
  static int fetched;
  ssize_t (*real)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);
  *(void **)&real = dlsym(RTLD_NEXT, "process_vm_readv");
  come_to_harm("read");
  if (remote->iov_len > sizeof(long) && ++fetched == 5) come_to_harm("fetch");
  return real(process, local, locals, remote, remotes, flags);
}
