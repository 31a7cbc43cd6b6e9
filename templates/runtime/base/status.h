// The result type of the runtime: success, or an NCCL error code with a message that says what failed, where, and what to do.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl.h"

namespace collc {

// The outcome of a function. The text of a failure is the sentence that ncclGetLastError() returns. Success is a null
// pointer, because every call returns it many times; code for failures is out of line for the same reason.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ncclResult_t code, std::string text);
  Status(Status &&other) = default;
  Status(const Status &other) : failure_(other.ok() ? nullptr : other.copy()) {}
  Status &operator=(Status &&other) = default;
  Status &operator=(const Status &other) { return *this = Status(other); }

  bool ok() const { return failure_ == nullptr; }
  ncclResult_t code() const { return ok() ? ncclSuccess : failure_->code; }
  std::string text() const { return ok() ? std::string() : failure_->text; }

 private:
  struct Failure {
    ncclResult_t code;
    std::string text;
  };
  struct Drop {
    void operator()(Failure *failure) const;
  };
  Failure *copy() const;

  std::unique_ptr<Failure, Drop> failure_;
};

__attribute__((format(printf, 1, 2))) std::string format(const char *pattern, ...);

std::string format_list(const char *pattern, va_list arguments);

__attribute__((format(printf, 2, 3))) Status fail(ncclResult_t code, const char *pattern, ...);

// Returns ncclSystemError with the text of `error_number`, as in "WHAT: No space left on device".
Status fail_errno(const std::string &what, int error_number);

// Returns UTF-8 text with '?' for every byte of characters that a terminal would obey or not show: control characters,
// bidirectional marks and overrides, zero-width characters. Messages quote variables, files and other libraries.
std::string printable(std::string text);

// Returns text such as "1, 2, 5". A longer list is cut to its first 8 ranks and the number of the others.
std::string list_ranks(const std::vector<uint32_t> &ranks);

#define COLLC_RETURN_IF_FAILED(expression)                                                       \
  do {                                                                                           \
    if (::collc::Status collc_outcome = (expression); !collc_outcome.ok()) return collc_outcome; \
  } while (0)

}  // namespace collc
