#include "plan/thresholds.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/tuning.h"

namespace collc {
namespace {

constexpr const char *kMachineFormat = "collc-machine/2";

struct Member {
  const char *name;
  uint64_t Thresholds::*bytes;
};
constexpr Member kMembers[] = {
    {"kernel_copies", &Thresholds::kernel_copies},
    {"kernel_copies_end", &Thresholds::kernel_copies_end},
    {"kernel_copies_crowded", &Thresholds::kernel_copies_crowded},
    {"kernel_copied_chunks", &Thresholds::kernel_copied_chunks},
    {"streamed_results", &Thresholds::streamed_results},
    {"streamed_broadcasts", &Thresholds::streamed_broadcasts},
    {"streamed_slots", &Thresholds::streamed_slots},
    {"streamed_broadcast_slots", &Thresholds::streamed_broadcast_slots},
    {"pulled_broadcasts", &Thresholds::pulled_broadcasts},
    {"pulled_broadcasts_end", &Thresholds::pulled_broadcasts_end},
    {"kernel_sums", &Thresholds::kernel_sums},
    {"kernel_sums_end", &Thresholds::kernel_sums_end},
    {"sums_everywhere", &Thresholds::sums_everywhere},
    {"sums_everywhere_end", &Thresholds::sums_everywhere_end},
};
static_assert(sizeof(Thresholds) == sizeof(kMembers) / sizeof(kMembers[0]) * sizeof(uint64_t), "a line for each member");

// The first `most` lines that say something.
std::vector<std::string> lines_of(const std::string &text, size_t most) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; lines.size() < most && std::getline(in, line);) {
    line.resize(std::min(line.size(), line.find('#')));
    const size_t last = line.find_last_not_of(" \t\r");
    if (last != std::string::npos) lines.push_back(line.substr(0, last + 1));
  }
  return lines;
}

// `embedded` leaves them as they are.
bool read_bytes(const std::string &word, uint64_t *bytes) {
  if (word == "embedded") return true;
  if (word == "never") {
    *bytes = UINT64_MAX;
    return true;
  }
  if (word.empty() || word.size() > 18 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  *bytes = std::stoull(word);
  return true;
}

std::string release() {
  utsname system;
  return uname(&system) == 0 ? system.release : "unknown";
}

// Where `collc tune --machine` leaves its file; empty if there is no such place.
std::string cache_file() {
  if (const char *cache = read_path("COLLC_CACHE")) return std::string(cache) + "/machine.txt";
  if (const char *base = read_path("XDG_CACHE_HOME"); base != nullptr && base[0] == '/')
    return std::string(base) + "/collc/machine.txt";
  const char *home = read_path("HOME");
  return home != nullptr ? std::string(home) + "/.cache/collc/machine.txt" : "";
}

// A file of somebody else does not count.
bool is_ours(const std::string &path) {
  struct stat facts;
  return stat(path.c_str(), &facts) == 0 && (facts.st_uid == geteuid() || facts.st_uid == 0) && (facts.st_mode & 022) == 0;
}

}  // namespace

Status read_thresholds(const char *path, MachineThresholds *thresholds) {
  std::string text;
  COLLC_RETURN_IF_FAILED(read_small_file(path, &text));
  const size_t nmembers = std::size(kMembers);
  const std::vector<std::string> lines = lines_of(text, nmembers + 5);  // one more than there may be
  if (lines.empty() || lines[0] != kMachineFormat)
    return fail(ncclInvalidUsage, "does not begin with %s: `collc tune --machine` writes it", kMachineFormat);
  if (lines.size() != nmembers + 4 || lines.back() != "end")
    return fail(ncclInvalidUsage, "is not whole: `collc tune --machine` writes it anew");
  if (lines[1] != std::string("machine ") + machine_description() || lines[2] != "kernel " + release())
    return fail(ncclInvalidUsage, "is for another machine or kernel, this one is %s, %s", machine_description(),
                release().c_str());
  MachineThresholds read;
  for (size_t i = 0; i < nmembers; ++i) {
    const std::string name = std::string(kMembers[i].name) + " ";
    const std::string &line = lines[3 + i];
    const size_t second = line.find(' ', name.size());
    if (line.compare(0, name.size(), name) != 0 || second == std::string::npos ||
        !read_bytes(line.substr(name.size(), second - name.size()), &(read.near.*kMembers[i].bytes)) ||
        !read_bytes(line.substr(second + 1), &(read.far.*kMembers[i].bytes)))
      return fail(ncclInvalidUsage, "has no line \"%s\" with twice bytes, never or embedded where it should be",
                  kMembers[i].name);
  }
  *thresholds = read;
  return {};
}

MachineThresholds find_thresholds(bool reports) {
  MachineThresholds found;
  if (const char *named = read_path("COLLC_MACHINE")) {
    const Status status = read_thresholds(named, &found);
    if (status.ok() || !reports) return found;
    say_once("COLLC_MACHINE=" + std::string(named).substr(0, 200) + " " + status.text() +
             ": the embedded thresholds stay in use");
    return found;
  }
  const std::string file = cache_file();
  if (file.empty() || !is_ours(file)) return found;
  const Status status = read_thresholds(file.c_str(), &found);
  if (!status.ok() && reports)
    log(LogLevel::kInfo, "%.200s %s: the embedded thresholds stay in use", file.c_str(), status.text().c_str());
  return found;
}

}  // namespace collc
