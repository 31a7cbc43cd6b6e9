#include "segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

namespace collc {
namespace {

constexpr uint64_t kMagic = 0x31676573636c6c63;  // "cllcseg1"

uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
uint64_t control_bytes(uint32_t nranks) { return pages(sizeof(Control)) + pages(nranks * sizeof(RankLine)); }

struct flock record(uint32_t rank, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

void futex_wait(std::atomic<uint32_t> &word, uint32_t value, uint64_t microseconds) {
  timespec limit;
  limit.tv_sec = static_cast<time_t>(microseconds / 1000000);
  limit.tv_nsec = static_cast<long>(microseconds % 1000000 * 1000);
  // Every reason to return (woken, changed, timed out, interrupted) makes the caller look again.
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

Status Segment::create(uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made) {
  const int fd = memfd_create("collc", MFD_CLOEXEC);
  if (fd < 0) return fail_errno("no shared memory (memfd_create)", errno);
  const uint64_t total = control_bytes(nranks) + pages(bytes);
  // Reserved now: running out of memory later would be a SIGBUS in the middle of a collective.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(total));
  if (error != 0) {
    close(fd);
    return fail_errno(format("cannot reserve %.1f MB of shared memory for %u ranks", total / 1e6, nranks), error);
  }
  COLLC_RETURN_IF_FAILED(map(fd, nranks, bytes, made));
  Control &control = (*made)->control();
  control.bytes = bytes;
  control.nranks = nranks;
  control.magic = kMagic;
  return {};
}

Status Segment::adopt(int fd, uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made) {
  struct stat info;
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != control_bytes(nranks) + pages(bytes)) {
    close(fd);
    return fail(ncclInternalError, "rank 0 shared memory of another size: do all ranks load the same library?");
  }
  COLLC_RETURN_IF_FAILED(map(fd, nranks, bytes, made));
  const Control &control = (*made)->control();
  if (control.magic != kMagic || control.nranks != nranks || control.bytes != bytes)
    return fail(ncclInternalError, "rank 0 shared memory of another kind: do all ranks load the same library?");
  return {};
}

Status Segment::map(int fd, uint32_t nranks, uint64_t bytes, std::shared_ptr<Segment> *made) {
  const uint64_t total = control_bytes(nranks) + pages(bytes);
  void *base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return fail_errno(format("cannot map %.1f MB of shared memory", total / 1e6), error);
  }
  // A forked child must not touch the ranks of its parent.
  madvise(base, total, MADV_DONTFORK);
  std::shared_ptr<Segment> segment(new Segment(fd, static_cast<char *>(base), total, nranks));
  segment->process_ = getpid();
  segment->control_ = reinterpret_cast<Control *>(segment->base_);
  segment->lines_ = reinterpret_cast<RankLine *>(segment->base_ + pages(sizeof(Control)));
  segment->memory_ = segment->base_ + control_bytes(nranks);
  *made = std::move(segment);
  return {};
}

Segment::~Segment() {
  if (process_ != getpid()) return;  // a forked child has no mapping to undo
  munmap(base_, bytes_);
  close(fd_);  // and with it every lock of this process
}

Status Segment::attach(uint32_t rank) {
  struct flock lock = record(rank, F_WRLCK);
  if (fcntl(fd_, F_SETLK, &lock) != 0) return fail(ncclInvalidUsage, "rank %u is taken by another process", rank);
  local_[rank].store(true, std::memory_order_release);
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0) != 0)
    control_->unfenced.fetch_add(1, std::memory_order_seq_cst);
  lines_[rank].state.store(static_cast<uint32_t>(RankState::kAttached), std::memory_order_seq_cst);
  control_->attached.fetch_add(1, std::memory_order_seq_cst);
  return {};
}

void Segment::leave(uint32_t rank) {
  lines_[rank].state.store(static_cast<uint32_t>(RankState::kLeft), std::memory_order_seq_cst);
  local_[rank].store(false, std::memory_order_release);
  struct flock lock = record(rank, F_UNLCK);
  fcntl(fd_, F_SETLK, &lock);
}

bool Segment::alive(uint32_t rank) const {
  const auto attached = [&] {
    return lines_[rank].state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::kAttached);
  };
  if (local_[rank].load(std::memory_order_acquire) || !attached()) return true;
  struct flock lock = record(rank, F_WRLCK);
  if (fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return true;
  return !attached();  // it may have left in between
}

void Segment::abort(const Status &status, uint32_t rank) {
  uint32_t expected = 0;
  if (control_->aborted.compare_exchange_strong(expected, 1)) {
    control_->abort_code = status.code();
    control_->abort_rank = rank;
    std::snprintf(control_->abort_text, sizeof control_->abort_text, "%s", status.text().c_str());
    control_->aborted.store(2, std::memory_order_seq_cst);
  }
  settle();  // also if another was first: it may not have come to that yet
  for (uint32_t r = 0; r < nranks(); ++r) ring(r);
}

void Segment::settle() {
  if (!kFencesCost || control_->unfenced.load(std::memory_order_relaxed) != 0) return;
  // Out of memory, or forbidden since it was registered: no processor keeps a store to itself for that long.
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0) == 0) return;
  timespec rest{0, 1000000};
  while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}

Status Segment::abort_status(uint32_t rank) const {
  if (control_->aborted.load(std::memory_order_acquire) != 2) return fail(ncclRemoteError, "another rank failed");
  const std::string text(control_->abort_text, strnlen(control_->abort_text, sizeof control_->abort_text));
  if (control_->abort_rank == rank) return Status(static_cast<ncclResult_t>(control_->abort_code), text);
  return Status(ncclRemoteError, format("rank %u: %s", control_->abort_rank, text.c_str()));
}

void Segment::wake(uint32_t bell) {
  lines_[bell].bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&lines_[bell].bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace collc
