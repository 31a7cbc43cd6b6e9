#include "base/log.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/environment.h"

namespace collc {
namespace {

thread_local char last_error_text[640];  // has no destructor: calls may come when the thread's others have run

LogLevel read_level() {
  const char *text = read_text("COLLC_DEBUG");
  if (text == nullptr) text = read_text("NCCL_DEBUG");
  if (text == nullptr) return LogLevel::kNone;
  if (strcasecmp(text, "TRACE") == 0) return LogLevel::kTrace;
  if (strcasecmp(text, "INFO") == 0 || strcasecmp(text, "ABORT") == 0) return LogLevel::kInfo;
  return strcasecmp(text, "WARN") == 0 || strcasecmp(text, "VERSION") == 0 ? LogLevel::kWarn : LogLevel::kNone;
}

}  // namespace

const char *last_error() { return last_error_text; }

void keep_for_last_error(const Status &status) {
  std::snprintf(last_error_text, sizeof last_error_text, "%s", status.text().c_str());
}

ncclResult_t report(const Status &status) {
  if (!status.ok() && status.code() != ncclInProgress) {
    std::snprintf(last_error_text, sizeof last_error_text, "%s", status.text().c_str());
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
  const std::string text = printable(format_list(pattern, arguments));
  va_end(arguments);
  static const char *const names[] = {"", "WARN", "INFO", "TRACE"};
  char line[640];
  const int size = std::snprintf(line, sizeof line, "collc: %d %s %s\n", static_cast<int>(getpid()),
                                 names[static_cast<int>(level)], text.c_str());
  // One write per line: lines of several ranks do not mix.
  const size_t bytes = std::min(static_cast<size_t>(std::max(size, 0)), sizeof line - 1);
  if (bytes == sizeof line - 1) line[bytes - 1] = '\n';
  if (write(STDERR_FILENO, line, bytes) < 0) return;
}

}  // namespace collc
