// Results with words: what went wrong, where, what to do.
#pragma once
#include <cstdarg>
#include <string>

#include "nccl.h"

namespace collc {

// An outcome of the runtime. Errors carry the sentence that ncclGetLastError returns.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ncclResult_t code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == ncclSuccess; }
  ncclResult_t code() const { return code_; }
  const std::string &text() const { return text_; }

 private:
  ncclResult_t code_ = ncclSuccess;
  std::string text_;
};

__attribute__((format(printf, 1, 2))) std::string format(const char *pattern, ...);

__attribute__((format(printf, 2, 3))) Status fail(ncclResult_t code, const char *pattern, ...);

// ncclSystemError with the text of `error_number`, "what: No space left on device".
Status fail_errno(const std::string &what, int error_number);

// The sentence of the last error in this thread; never null.
const char *last_error();

// Remembers a failed status for last_error() and logs it; returns its code.
ncclResult_t report(const Status &status);

// COLLC_DEBUG=WARN, INFO or TRACE: one line on stderr per event, in NCCL's spirit.
enum class LogLevel { kNone = 0, kWarn = 1, kInfo = 2, kTrace = 3 };
bool logs(LogLevel level);
__attribute__((format(printf, 2, 3))) void log(LogLevel level, const char *pattern, ...);

#define COLLC_RETURN_IF_FAILED(expression)                                                     \
  do {                                                                                         \
    if (::collc::Status collc_outcome = (expression); !collc_outcome.ok()) return collc_outcome; \
  } while (0)

}  // namespace collc
