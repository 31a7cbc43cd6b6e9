#include "plan/thresholds.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/tuning.h"

namespace collc {
namespace {

constexpr const char *kThresholdsFormat = "collc-machine/2";

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
static_assert(sizeof(Thresholds) == std::size(kMembers) * sizeof(uint64_t), "a line for each member");
constexpr size_t kHeaderLines = 3;  // format, machine, kernel

// Returns the first `max_lines` lines without comments, spaces at the end, and empty lines.
std::vector<std::string> split_lines(const std::string &text, size_t max_lines) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; lines.size() < max_lines && std::getline(in, line);) {
    line.resize(std::min(line.size(), line.find('#')));
    const size_t last = line.find_last_not_of(" \t\r");
    if (last != std::string::npos) lines.push_back(line.substr(0, last + 1));
  }
  return lines;
}

// Parses a number of bytes, "never" or "embedded", which leaves `bytes` unchanged. Returns false for any other word.
bool parse_threshold(const std::string &word, uint64_t *bytes) {
  if (word == "embedded") return true;
  if (word == "never") {
    *bytes = UINT64_MAX;
    return true;
  }
  if (word.empty() || word.size() > 18 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  *bytes = std::stoull(word);
  return true;
}

std::string kernel_release() {
  utsname system;
  return uname(&system) == 0 ? system.release : "unknown";
}

// Returns the path of the file that `collc tune --machine` writes; empty if the environment names no cache folder.
std::string cache_path() {
  if (const char *cache = read_path("COLLC_CACHE")) return std::string(cache) + "/machine.txt";
  if (const char *base = read_path("XDG_CACHE_HOME"); base != nullptr && base[0] == '/')
    return std::string(base) + "/collc/machine.txt";
  const char *home = read_path("HOME");
  return home != nullptr ? std::string(home) + "/.cache/collc/machine.txt" : "";
}

// Returns whether the file belongs to this user or root, and neither its group nor others may write it.
bool is_trusted(const std::string &path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && (status.st_uid == geteuid() || status.st_uid == 0) && (status.st_mode & 022) == 0;
}

}  // namespace

Status read_thresholds(const char *path, MachineThresholds *thresholds) {
  std::string text;
  COLLC_RETURN_IF_FAILED(read_small_file(path, &text));
  const size_t nmembers = std::size(kMembers);
  // A valid file has one line less: header, members and `end`.
  const std::vector<std::string> lines = split_lines(text, kHeaderLines + nmembers + 2);
  if (lines.empty() || lines[0] != kThresholdsFormat)
    return fail(ncclInvalidUsage, "does not begin with %s: `collc tune --machine` writes it", kThresholdsFormat);
  if (lines.size() != kHeaderLines + nmembers + 1 || lines.back() != "end")
    return fail(ncclInvalidUsage, "is not whole: `collc tune --machine` writes it anew");
  if (lines[1] != std::string("machine ") + machine_description() || lines[2] != "kernel " + kernel_release())
    return fail(ncclInvalidUsage, "is for another machine or kernel, this one is %s, %s", machine_description(),
                kernel_release().c_str());
  MachineThresholds result;
  for (size_t i = 0; i < nmembers; ++i) {
    const std::string name = std::string(kMembers[i].name) + " ";
    const std::string &line = lines[kHeaderLines + i];
    const size_t second = line.find(' ', name.size());
    if (line.compare(0, name.size(), name) != 0 || second == std::string::npos ||
        !parse_threshold(line.substr(name.size(), second - name.size()), &(result.near_cores.*kMembers[i].bytes)) ||
        !parse_threshold(line.substr(second + 1), &(result.far_cores.*kMembers[i].bytes)))
      return fail(ncclInvalidUsage, "has no line \"%s\" with twice bytes, never or embedded where it should be",
                  kMembers[i].name);
  }
  *thresholds = result;
  return {};
}

MachineThresholds find_thresholds(bool reports_errors) {
  MachineThresholds thresholds;
  if (const char *path = read_path("COLLC_MACHINE")) {
    const Status status = read_thresholds(path, &thresholds);
    if (!status.ok() && reports_errors)
      say_once("COLLC_MACHINE=" + std::string(path).substr(0, 200) + " " + status.text() +
               ": the embedded thresholds stay in use");
    return thresholds;
  }
  const std::string path = cache_path();
  if (path.empty() || !is_trusted(path)) return thresholds;
  const Status status = read_thresholds(path.c_str(), &thresholds);
  if (!status.ok() && reports_errors)
    log(LogLevel::kInfo, "%.200s %s: the embedded thresholds stay in use", path.c_str(), status.text().c_str());
  return thresholds;
}

}  // namespace collc
