#include "communicator/flight.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/environment.h"
#include "base/file_limit.h"
#include "base/log.h"
#include "plan/embedded_tables.h"
#include "plan/routes.h"

namespace collc {
namespace {

constexpr uint32_t kCallsOfPeer = 4;  // calls in a file, of a rank that can leave a file itself

void copy_text(char *to, size_t bytes, const std::string &text) { std::snprintf(to, bytes, "%s", printable(text).c_str()); }

std::string host_name() {
  char name[64] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// A JSON string.
std::string quoted(const std::string &text) {
  std::string json = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + '"';
}

unsigned long long number_of(uint64_t number) { return number; }

// Writes `text` to a new file at `path`. Returns errno; 0: the whole file is there.
int write_file(const std::string &path, const std::string &text) {
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  int error = within_file_limit([&] {
    for (size_t at = 0; at < text.size();) {
      const ssize_t done = write(fd, text.data() + at, text.size() - at);
      if (done < 0 && errno != EINTR) return errno;
      if (done > 0) at += static_cast<size_t>(done);
    }
    return 0;
  });
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) unlink(part.c_str());
  return error;
}

}  // namespace

// Both clocks of the records at two times, and the time of day.
struct FlightRecord::Clocks {
  uint64_t made_ns, made_ticks, ns = now_ns(), ticks = now_ticks();
  int64_t day_ns = 0;  // time of day, less `ns`

  explicit Clocks(const BoardRank &mine) : made_ns(mine.made_ns), made_ticks(mine.made_ticks) {
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    day_ns = int64_t{time.tv_sec} * 1000000000 + time.tv_nsec - static_cast<int64_t>(ns);
  }
  // The time of day, in nanoseconds since 1970.
  long long day(uint64_t then) const {
    const double unit = ticks == made_ticks ? 1 : static_cast<double>(ns - made_ns) / static_cast<double>(ticks - made_ticks);
    const auto ago = static_cast<double>(static_cast<int64_t>(ticks - then)) * unit;
    return day_ns + static_cast<int64_t>(ns) - static_cast<int64_t>(ago);
  }
};

FlightRecord::FlightRecord(std::shared_ptr<Segment> segment, const Placement &placement, uint32_t rank, uint64_t id,
                           bool tells_ends)
    : segment_(std::move(segment)), rank_(rank) {
  BoardRank &mine = segment_->board().rank(rank);
  mine.process = getpid();
  mine.plan_rank = placement.plan_rank.empty() ? 0 : placement.plan_rank[rank];
  mine.tells_ends = tells_ends ? 1 : 0;
  copy_text(mine.gpu, sizeof mine.gpu, gpu_name(placement, rank));
  copy_text(mine.host, sizeof mine.host, host_name());
  mine.made_ns = now_ns();
  mine.made_ticks = now_ticks();
  mine.told.store(1, std::memory_order_release);
  // All ranks of this machine would write the same; the first of them does.
  uint32_t first = 0;
  while (!placement.is_here(first)) ++first;
  if (rank != first) return;
  BoardHeader &header = segment_->board().header();
  header.id = id;
  header.allocation =
      placement.allocation == nullptr ? UINT64_MAX : static_cast<uint64_t>(placement.allocation - tables().allocations);
  Dl_info own = {};
  if (dladdr(reinterpret_cast<const void *>(&write_file), &own) != 0 && own.dli_fname != nullptr)
    copy_text(header.library, sizeof header.library, own.dli_fname);
  header.named.store(1, std::memory_order_release);
}

const char *FlightRecord::state_of(uint32_t rank) const {
  if (segment_->has_left(rank)) return "left";
  if (!segment_->alive(rank)) return "died";
  return segment_->board().rank(rank).told.load(std::memory_order_acquire) == 0 ? "elsewhere" : "alive";
}

// Names of PyTorch's flight recorder where the field is the same.
std::string FlightRecord::entry(const Clocks &clocks, uint32_t rank, const CallLog::Noted &call, uint64_t number,
                                bool transfer) const {
  const bool tells = segment_->board().rank(rank).tells_ends != 0;
  const char *const state = !tells ? "scheduled" : call.ended == 0 ? "started" : "completed";
  return format("{\"collective_seq_id\": %llu, \"p2p_seq_id\": %llu, \"is_p2p\": %s, \"profiling_name\": \"collc:%s\", ",
                number_of(transfer ? 0 : number), number_of(transfer ? number : 0), transfer ? "true" : "false",
                name_of(static_cast<Collective>(call.what & 0xff))) +
         format("\"call\": %s, \"history\": \"%016llx\", ", quoted(describe_call(call.what, call.count)).c_str(),
                number_of(call.history)) +
         format("\"state\": \"%s\", \"time_created_ns\": %lld%s}", state, clocks.day(call.begun),
                call.ended <= CallRecord::kEnded
                    ? ""
                    : format(", \"time_discovered_completed_ns\": %lld", clocks.day(call.ended)).c_str());
}

// The last calls of a rank, `most` of each log, the oldest first: its collectives, then its transfers.
std::string FlightRecord::entries(const Clocks &clocks, uint32_t rank, uint32_t most) const {
  std::string json;
  const auto add = [&](const CallLog &log, uint64_t newest, bool transfer) {
    const uint64_t kept = std::min<uint64_t>({newest, log.depth(), most});
    for (uint64_t number = newest - kept + 1; number <= newest; ++number) {
      CallLog::Noted call;
      if (log.find(number, &call)) json += (json.empty() ? "\n    " : ",\n    ") + entry(clocks, rank, call, number, transfer);
    }
  };
  add(segment_->log(rank), segment_->newest_call(rank), false);
  const CallLog transfers = segment_->board().transfers(rank);
  add(transfers, transfers.newest(), true);
  return json;
}

std::string FlightRecord::peer(const Clocks &clocks, uint32_t rank) const {
  const BoardRank &told = segment_->board().rank(rank);
  const char *const state = state_of(rank);
  const uint32_t most = std::strcmp(state, "died") == 0 ? UINT32_MAX : kCallsOfPeer;
  return format("{\"rank\": %u, \"state\": \"%s\", \"pid\": %d, \"host\": %s, \"gpu\": %s, \"newest\": %llu, ", rank, state,
                told.process, quoted(told.host).c_str(), quoted(told.gpu).c_str(), number_of(segment_->newest_call(rank))) +
         "\"entries\": [" + entries(clocks, rank, most) + "]}";
}

std::string FlightRecord::text(ncclResult_t result, const std::string &why) const {
  const Board &board = segment_->board();
  const BoardRank &mine = board.rank(rank_);
  const Clocks clocks(mine);
  std::string json = format("{\"format\": \"collc-flight/1\", \"communicator\": \"%010llx\", \"nranks\": %u, \"rank\": %u,\n",
                            number_of(board.header().id), segment_->nranks(), rank_);
  json += format(" \"pid\": %d, \"host\": %s, \"gpu\": %s, \"library\": %s,\n", mine.process, quoted(mine.host).c_str(),
                 quoted(mine.gpu).c_str(), quoted(board.header().library).c_str());
  json += format(" \"error\": {\"result\": %d, \"text\": %s}, \"time_ns\": %lld,\n \"entries\": [", static_cast<int>(result),
                 quoted(why).c_str(), clocks.day(clocks.ticks));
  json += entries(clocks, rank_, UINT32_MAX) + "],\n \"peers\": [";
  for (uint32_t r = 0, listed = 0; r < segment_->nranks(); ++r)
    if (r != rank_) json += (listed++ == 0 ? "\n  " : ",\n  ") + peer(clocks, r);
  return json + "]}\n";
}

bool FlightRecord::is_in_call() const {
  const Board &board = segment_->board();
  if (board.rank(rank_).tells_ends == 0) return true;
  const CallLog calls = segment_->log(rank_), transfers = board.transfers(rank_);
  CallLog::Noted call;
  return (calls.find(segment_->newest_call(rank_), &call) && call.ended == 0) ||
         (transfers.find(transfers.newest(), &call) && call.ended == 0);
}

void FlightRecord::leave(const Status &why) noexcept {
  if (left_.exchange(true)) return;
  const std::lock_guard<std::mutex> lock(writing_);
  write(why.code(), why.text());
}

void FlightRecord::show(const std::string &why) noexcept {
  const std::lock_guard<std::mutex> lock(writing_);
  if (!left_.load()) write(ncclSuccess, why);
}

void FlightRecord::write(ncclResult_t result, const std::string &why) noexcept {
  try {
    const char *const folder = read_path("COLLC_DUMP");
    if (folder == nullptr) return;
    const std::string path = format("%s/collc-%010llx-rank%u.json", folder, number_of(segment_->board().header().id), rank_);
    const int error = write_file(path, text(result, why));
    if (error != 0)
      log(LogLevel::kWarn, "COLLC_DUMP: %s", fail_errno(path, error).text().c_str());
    else
      log(LogLevel::kInfo, "the last calls of rank %u are in %s", rank_, path.c_str());
  } catch (const std::exception &error) {
    log(LogLevel::kWarn, "COLLC_DUMP: %s", error.what());
  }
}

}  // namespace collc
