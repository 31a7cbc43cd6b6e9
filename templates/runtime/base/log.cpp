#include "base/log.h"

#include <pthread.h>
#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

#include "base/environment.h"

namespace collc {
namespace {

constexpr size_t kErrorBytes = 640, kMostLineBytes = 630;

// These objects have no destructors, because a call may come after the destructors of the thread or the process have run.
thread_local char last_error_text[kErrorBytes];
thread_local bool has_error = false;  // last_error_text is of an error in this thread
std::mutex newest_mutex;
char newest_error[kErrorBytes];  // the last error of any thread

std::unique_lock<std::mutex> lock_newest() {
  // Without these handlers, a forked child could find the mutex locked forever by a thread that it does not have.
  static const int registered =
      pthread_atfork([] { newest_mutex.lock(); }, [] { newest_mutex.unlock(); }, [] { newest_mutex.unlock(); });
  static_cast<void>(registered);  // if this failed, only children that are forked during a failure are at risk
  return std::unique_lock<std::mutex>(newest_mutex);
}

LogLevel read_level() {
  const char *text = read_text("COLLC_DEBUG");
  if (text == nullptr) text = read_text("NCCL_DEBUG");
  if (text == nullptr) return LogLevel::kNone;
  if (strcasecmp(text, "TRACE") == 0) return LogLevel::kTrace;
  if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "ABORT") == 0) return LogLevel::kInfo;
  return strcasecmp(text, "WARN") == 0 || strcasecmp(text, "VERSION") == 0 ? LogLevel::kWarn : LogLevel::kNone;
}

}  // namespace

const char *last_error() {
  if (!has_error) {
    const std::unique_lock<std::mutex> lock = lock_newest();
    std::memcpy(last_error_text, newest_error, kErrorBytes);
  }
  return last_error_text;
}

void keep_for_last_error(const Status &status) {
  std::snprintf(last_error_text, kErrorBytes, "%s", status.text().c_str());
  has_error = true;
  const std::unique_lock<std::mutex> lock = lock_newest();
  std::memcpy(newest_error, last_error_text, kErrorBytes);
}

ncclResult_t report(const Status &status) {
  if (!status.ok() && status.code() != ncclInProgress) {
    keep_for_last_error(status);
    log(LogLevel::kWarn, "%s", last_error_text);
  }
  return status.code();
}

bool logs(LogLevel level) {
  static const LogLevel wanted = read_level();
  return level <= wanted;
}

void log(LogLevel level, const char *pattern, ...) {
  if (!logs(level)) return;
  va_list arguments;
  va_start(arguments, pattern);
  const std::string text = format_list(pattern, arguments);
  va_end(arguments);
  static const char *const names[] = {"", "WARN", "INFO", "TRACE"};
  say(std::to_string(getpid()) + " " + names[static_cast<int>(level)] + " " + text);
}

void say(const std::string &text) {
  // One write per line, so that lines of several ranks do not mix.
  const std::string line = "collc: " + printable(text).substr(0, kMostLineBytes) + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void say_once(const std::string &text) {
  static std::mutex mutex;
  // never destroyed, because threads of the library may outlive static objects
  static auto *const said = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(text).second) say(text);
}

}  // namespace collc
