/* Preloaded: a link that is not what it should be. BAD_LINK in the environment, read at every call so that a test can give
 * it to one rank alone: "copy": large copies out of process BAD_PEER have one bit turned; "wire": so have large messages
 * from another machine; "slow": a read of such a message takes 20 ms. Small messages, of which a job is made, pass.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 16 << 10 };

static int is_bad(const char *how) {
  const char *said = getenv("BAD_LINK");
  return said != NULL && strcmp(said, how) == 0;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long tos, const struct iovec *from, unsigned long froms,
                         unsigned long flags) {
  ssize_t (*real)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);
  ssize_t size;
  *(void **)&real = dlsym(RTLD_NEXT, "process_vm_readv");
  size = real(pid, to, tos, from, froms, flags);
  if (size >= LARGE && is_bad("copy") && pid == atoi(getenv("BAD_PEER"))) ((char *)to->iov_base)[size / 2] ^= 0x10;
  return size;
}

/* Of two pieces the first is what is missing of a message's body, and the last is a buffer for whatever follows. How much comes
 * at once depends on the machine; with a small buffer nearly all of a large message is read as a body, also on a slow one. */
ssize_t readv(int fd, const struct iovec *pieces, int count) {
  ssize_t (*real)(int, const struct iovec *, int);
  const int bends = is_bad("wire"), naps = is_bad("slow");
  const struct timespec nap = {0, 20000000};
  struct iovec fewer[2];
  ssize_t size;
  *(void **)&real = dlsym(RTLD_NEXT, "readv");
  if ((!bends && !naps) || count < 1 || count > 2) return real(fd, pieces, count);
  memcpy(fewer, pieces, (size_t)count * sizeof *pieces);
  if (fewer[count - 1].iov_len > LARGE / 4) fewer[count - 1].iov_len = LARGE / 4;
  size = real(fd, fewer, count);
  if (size > 0 && count == 2 && pieces[0].iov_len >= LARGE) {
    if (bends) *(char *)pieces[0].iov_base ^= 0x10;
    if (naps) nanosleep(&nap, NULL);
  }
  return size;
}
