#include "control/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <new>
#include <vector>

#include "base/file_limit.h"

namespace collc {
namespace {

constexpr uint64_t kMagic = 0x32676573636c6c63;  // "cllcseg2"

uint64_t lines_bytes(const Segment::Size &size) { return whole_pages(size.nranks * sizeof(RankLine)); }
uint64_t board_at(const Segment::Size &size) {
  return whole_pages(sizeof(ControlPage)) + lines_bytes(size) +
         whole_pages(uint64_t{size.nranks} * size.calls * sizeof(CallRecord));
}
uint64_t motion_at(const Segment::Size &size) { return board_at(size) + whole_pages(Board::bytes(size.nranks)); }
uint64_t losses_at(const Segment::Size &size) {
  return motion_at(size) + whole_pages(sizeof(Motion) + size.nranks * (sizeof(Ballot) + TimedCall::kKept * sizeof(TimedCall)));
}
uint64_t control_bytes(const Segment::Size &size) {
  return losses_at(size) + whole_pages(sizeof(LossWords) + size.nranks * sizeof(BegunCall));
}
uint64_t total_bytes(const Segment::Size &size) { return control_bytes(size) + whole_pages(size.bytes); }

// The segments that this process has mapped. A forked child also finds those of its parent here, whose memory it does not have.
struct MappedSegments {
  std::mutex mutex;
  std::vector<const Segment *> all;
};

MappedSegments &mapped_segments() {
  static auto *const only = new MappedSegments;  // outlives every thread
  // A forked child would find the mutex locked for ever by a thread that it does not have.
  static const int registered =
      pthread_atfork([] { only->mutex.lock(); }, [] { only->mutex.unlock(); }, [] { only->mutex.unlock(); });
  if (registered != 0) throw std::bad_alloc();
  return *only;
}

}  // namespace

void futex_wait(std::atomic<uint32_t> &word, uint32_t value, uint64_t microseconds) {
  timespec limit;
  limit.tv_sec = static_cast<time_t>(microseconds / 1000000);
  limit.tv_nsec = static_cast<long>(microseconds % 1000000 * 1000);
  // May return for any reason (woken, changed, timed out, interrupted); the caller looks again.
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

Status Segment::create(const Size &size, std::shared_ptr<Segment> *made) {
  const int fd = memfd_create("collc", MFD_CLOEXEC);
  if (fd < 0) return fail_errno("no shared memory (memfd_create)", errno);
  // Reserves the memory now, because running out of memory later would raise SIGBUS in the middle of a collective.
  const uint64_t total = total_bytes(size);
  const int error = within_file_limit([&] { return posix_fallocate(fd, 0, static_cast<off_t>(total)); });
  if (error != 0) {
    close(fd);
    const char *limit = error == EFBIG ? " (the limit of RLIMIT_FSIZE, ulimit -f, holds for it too)" : "";
    return fail_errno(
        format("cannot reserve %.1f MB of shared memory for %u ranks%s", static_cast<double>(total) / 1e6, size.nranks, limit),
        error);
  }
  COLLC_RETURN_IF_FAILED(map(fd, size, made));
  ControlPage &control = (*made)->control();
  control.bytes = size.bytes;
  control.nranks = size.nranks;
  control.calls = size.calls;
  (*made)->describe();
  control.board = board_at(size);
  control.magic = kMagic;
  return {};
}

void Segment::describe() {
  BoardHeader &header = board_.header();
  const auto from_base = [this](const void *at) { return static_cast<uint64_t>(static_cast<const char *>(at) - base_); };
  header.magic = kBoardMagic;
  header.bytes = sizeof header;
  header.nranks = control_->nranks;
  header.calls = control_->calls;
  header.transfers = Board::kTransfers;
  header.aborted = from_base(&control_->aborted);
  header.abort_code = from_base(&control_->abort_code);
  header.abort_rank = from_base(&control_->abort_rank);
  header.abort_text = from_base(control_->abort_text);
  header.abort_text_bytes = sizeof control_->abort_text;
  header.lines = from_base(lines_);
  header.line_bytes = sizeof(RankLine);
  header.state = offsetof(RankLine, state);
  header.owner = offsetof(RankLine, liveness) + offsetof(LivenessMark, owner_tid);
  header.newest = offsetof(RankLine, calls) + offsetof(CallCounts, newest);
  header.finished = offsetof(RankLine, calls) + offsetof(CallCounts, finished);
  header.turn = offsetof(RankLine, asleep) + offsetof(Asleep, turn);
  header.waits = offsetof(RankLine, asleep) + offsetof(Asleep, waits);
  header.waits_words = Asleep::kMostRanks / 64;
  header.in_count = offsetof(RankLine, asleep) + offsetof(Asleep, count);
  header.in_what = offsetof(RankLine, asleep) + offsetof(Asleep, what);
  header.ranks = from_base(&board_.rank(0));
  header.rank_bytes = sizeof(BoardRank);
  header.call_records = from_base(calls_);
  header.transfer_records = from_base(&board_.header()) + Board::transfers_at(control_->nranks);
  header.record_bytes = sizeof(CallRecord);
  header.ways = from_base(&board_.way(0, 0));
}

Status Segment::adopt(int fd, const Size &size, std::shared_ptr<Segment> *made) {
  struct stat info;
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != total_bytes(size)) {
    close(fd);
    return fail(ncclInternalError, "rank 0 shared memory of another size: do all ranks load the same library?");
  }
  COLLC_RETURN_IF_FAILED(map(fd, size, made));
  (*made)->hide();
  const ControlPage &control = (*made)->control();
  if (control.magic != kMagic || control.nranks != size.nranks || control.calls != size.calls || control.bytes != size.bytes)
    return fail(ncclInternalError, "rank 0 shared memory of another kind: do all ranks load the same library?");
  return {};
}

Status Segment::map(int fd, const Size &size, std::shared_ptr<Segment> *made) {
  const uint64_t total = total_bytes(size);
  void *base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return fail_errno(format("cannot map %.1f MB of shared memory", static_cast<double>(total) / 1e6), error);
  }
  // A forked child must not touch the state of its parent's ranks.
  madvise(base, total, MADV_DONTFORK);
  std::shared_ptr<Segment> segment(new Segment(fd, static_cast<char *>(base), total));
  segment->process_ = getpid();
  segment->control_ = reinterpret_cast<ControlPage *>(segment->base_);
  segment->lines_ = reinterpret_cast<RankLine *>(segment->base_ + whole_pages(sizeof(ControlPage)));
  segment->calls_ = reinterpret_cast<CallRecord *>(reinterpret_cast<char *>(segment->lines_) + lines_bytes(size));
  segment->board_ = Board(segment->base_ + board_at(size), size.nranks);
  segment->motion_ = reinterpret_cast<Motion *>(segment->base_ + motion_at(size));
  segment->ballots_ = reinterpret_cast<Ballot *>(segment->motion_ + 1);
  segment->timed_ = reinterpret_cast<TimedCall *>(segment->ballots_ + size.nranks);
  segment->losses_ = reinterpret_cast<LossWords *>(segment->base_ + losses_at(size));
  segment->begun_ = reinterpret_cast<BegunCall *>(segment->losses_ + 1);
  segment->memory_ = segment->base_ + control_bytes(size);
  {
    MappedSegments &mapped = mapped_segments();
    const std::lock_guard<std::mutex> lock(mapped.mutex);
    mapped.all.push_back(segment.get());
  }
  *made = std::move(segment);
  return {};
}

Segment::~Segment() {
  if (process_ != getpid()) return;  // a forked child does not have the mapping
  {
    MappedSegments &mapped = mapped_segments();
    const std::lock_guard<std::mutex> lock(mapped.mutex);
    mapped.all.erase(std::remove(mapped.all.begin(), mapped.all.end(), this), mapped.all.end());
  }
  hide();
  munmap(base_, bytes_);
}

void Segment::hide() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status Segment::attach(uint32_t rank) {
  bool taken = false;
  COLLC_RETURN_IF_FAILED(acquire(lines_[rank].liveness, &taken));
  if (taken) return fail(ncclInvalidUsage, "rank %u is taken by another process", rank);
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0) != 0)
    control_->unfenced.fetch_add(1, std::memory_order_seq_cst);
  lines_[rank].state.store(static_cast<uint32_t>(RankState::kAttached), std::memory_order_seq_cst);
  control_->attached.fetch_add(1, std::memory_order_seq_cst);
  return {};
}

void Segment::leave(uint32_t rank) {
  if (process_ != getpid()) return;
  lines_[rank].state.store(static_cast<uint32_t>(RankState::kLeft), std::memory_order_seq_cst);
  release(lines_[rank].liveness);
}

bool Segment::alive(uint32_t rank) const {
  const RankLine &line = lines_[rank];
  return line.state.load(std::memory_order_acquire) != static_cast<uint32_t>(RankState::kAttached) || !has_ended(line.liveness);
}

Status Segment::acquire_proxy(uint32_t rank) {
  bool taken = false;
  control_->proxy.rank.store(rank, std::memory_order_relaxed);
  COLLC_RETURN_IF_FAILED(acquire(control_->proxy.liveness, &taken));
  return taken ? fail(ncclInternalError, "another process has the connections of this machine") : Status();
}

void Segment::release_proxy() {
  if (process_ == getpid()) release(control_->proxy.liveness);
}

Status Segment::compare(uint32_t rank, uint32_t peer) const {
  const bool is_over = is_finalized(peer);  // read first, so that all calls of a finalized peer are visible
  const CallLog mine = log(rank), theirs = log(peer);
  const uint64_t my_newest = newest_call(rank), last = newest_call(peer);
  COLLC_RETURN_IF_FAILED(compare_calls({rank, mine, my_newest}, {peer, theirs, last}));
  if (!is_over || last >= my_newest) return {};
  return fail(ncclInvalidUsage, "calls differ: rank %u has made call %llu, rank %u was finalized after call %llu", rank,
              static_cast<unsigned long long>(my_newest), peer, static_cast<unsigned long long>(last));
}

void Segment::abort(const Status &status, uint32_t rank) {
  uint32_t expected = 0;
  if (control_->aborted.compare_exchange_strong(expected, 1)) {
    control_->abort_code = status.code();
    control_->abort_rank = rank;
    std::snprintf(control_->abort_text, sizeof control_->abort_text, "%s", status.text().c_str());
    control_->aborted.store(2, std::memory_order_seq_cst);
  }
  settle();  // also if another rank was first, because that rank may not have called it yet
  for (uint32_t r = 0; r < nranks(); ++r) ring(r);
}

void Segment::settle() {
  if (!kFencesCost || control_->unfenced.load(std::memory_order_relaxed) != 0) return;
  // Out of memory, or forbidden after the registration. Sleeps for 1 ms instead, because no CPU keeps a store in its buffer
  // for that long.
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0) == 0) return;
  timespec rest{0, 1000000};
  while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}

Status Segment::abort_status(uint32_t rank) const {
  // The rank that aborts writes the text right after its mark. If it dies in between, there is no text.
  for (int look = 0; control_->aborted.load(std::memory_order_acquire) != 2; ++look) {
    if (look == 1000) return fail(ncclRemoteError, "another rank failed");
    timespec rest{0, 1000000};
    nanosleep(&rest, nullptr);
  }
  const std::string text(control_->abort_text, strnlen(control_->abort_text, sizeof control_->abort_text));
  if (control_->abort_rank == rank || control_->abort_code == ncclInvalidUsage)
    return Status(static_cast<ncclResult_t>(control_->abort_code), text);
  return Status(ncclRemoteError, format("rank %u: %s", control_->abort_rank, text.c_str()));
}

Status Segment::with_differing_calls(const Status &failure) const {
  MappedSegments &mapped = mapped_segments();
  const std::lock_guard<std::mutex> lock(mapped.mutex);
  for (const Segment *other : mapped.all) {
    if (other == this || other->process_ != process_) continue;
    if (other->control_->aborted.load(std::memory_order_acquire) != 2) continue;  // 1: its message is still being written
    const Status found = other->abort_status(other->nranks());
    if (found.code() == ncclInvalidUsage)
      return Status(failure.code(), failure.text() + "; in another communicator " + found.text());
  }
  return failure;
}

uint64_t Segment::post(uint32_t rank, const Bytes &message) {
  Mail &mine = lines_[rank].mail;
  const uint64_t number = mine.number.load(std::memory_order_relaxed) + 1;
  std::memcpy(mine.data[number % Mail::kKept], message.data(), std::min(message.size(), Mail::kBytes));
  mine.number.store(number, std::memory_order_release);
  return number;
}

Status Segment::take(uint32_t rank, uint64_t number, Bytes *message) const {
  const Mail &theirs = lines_[rank].mail;
  if (theirs.number.load(std::memory_order_acquire) < number) {
    if (!alive(rank)) return fail(ncclRemoteError, "rank %u has died", rank);
    return {};
  }
  const unsigned char *data = theirs.data[number % Mail::kKept];
  message->assign(data, data + Mail::kBytes);
  message->back() = 0;
  // The buffer may have been overwritten during the read, because the rank writes message number + kKept before it publishes
  // that number. So the copy counts only if the published number is less than number + kKept - 1.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (theirs.number.load(std::memory_order_acquire) + 1 >= number + Mail::kKept) message->clear();
  return {};
}

void Segment::wake(uint32_t bell) {
  lines_[bell].bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&lines_[bell].bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace collc
