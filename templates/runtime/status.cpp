#include "status.h"

#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace collc {
namespace {

thread_local char last_error_text[640];  // has no destructor: calls may come when the thread's others have run

LogLevel read_level() {
  const char *text = std::getenv("COLLC_DEBUG");
  if (text == nullptr || *text == '\0') return LogLevel::kNone;
  if (strcasecmp(text, "TRACE") == 0) return LogLevel::kTrace;
  if (strcasecmp(text, "INFO") == 0) return LogLevel::kInfo;
  return strcasecmp(text, "WARN") == 0 || strcasecmp(text, "VERSION") == 0 ? LogLevel::kWarn : LogLevel::kNone;
}

std::string vformat(const char *pattern, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, pattern, arguments);
  return text;
}

}  // namespace

Status::Status(ncclResult_t code, std::string text) {
  if (code != ncclSuccess) failure_.reset(new Failure{code, std::move(text)});
}

void Status::Drop::operator()(Failure *failure) const { delete failure; }

Status::Failure *Status::copy() const { return new Failure(*failure_); }

std::string format(const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  return text;
}

Status fail(ncclResult_t code, const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  Status status(code, vformat(pattern, arguments));
  va_end(arguments);
  return status;
}

Status fail_errno(const std::string &what, int error_number) {
  char text[128];
  // GNU's strerror_r returns the text, which need not be in the buffer.
  return Status(ncclSystemError, what + ": " + strerror_r(error_number, text, sizeof text));
}

const char *last_error() { return last_error_text; }

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
  const std::string text = vformat(pattern, arguments);
  va_end(arguments);
  static const char *const names[] = {"", "WARN", "INFO", "TRACE"};
  char line[640];
  const int size = std::snprintf(line, sizeof line, "collc: %d %s %s\n", static_cast<int>(getpid()),
                                 names[static_cast<int>(level)], text.c_str());
  // One write per line: lines of several ranks do not mix.
  if (write(STDERR_FILENO, line, static_cast<size_t>(size)) < 0) return;
}

}  // namespace collc
