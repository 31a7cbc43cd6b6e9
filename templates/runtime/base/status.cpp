#include "base/status.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace collc {

std::string format_list(const char *pattern, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, pattern, arguments);
  return text;
}

Status::Status(ncclResult_t code, std::string text) {
  if (code != ncclSuccess) failure_.reset(new Failure{code, printable(std::move(text))});
}

void Status::Drop::operator()(Failure *failure) const { delete failure; }

Status::Failure *Status::copy() const { return new Failure(*failure_); }

std::string list_ranks(const std::vector<uint32_t> &ranks) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return ranks.size() <= kMost ? text : text + format(" and %zu more", ranks.size() - kMost);
}

std::string printable(std::string text) {
  const auto byte = [&text](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  const auto within = [](unsigned value, unsigned least, unsigned most) { return value >= least && value <= most; };
  for (size_t at = 0; at < text.size(); ++at) {
    const unsigned one = byte(at), two = byte(at + 1), three = byte(at + 2);
    size_t bytes = 0;
    if (one < 0x20 || one == 0x7f) bytes = 1;
    if (one == 0xc2 && within(two, 0x80, 0x9f)) bytes = 2;                                         // C1
    if (one == 0xd8 && two == 0x9c) bytes = 2;                                                     // Arabic letter mark
    if (one == 0xe2 && two == 0x80 && (within(three, 0x8b, 0x8f) || within(three, 0xa8, 0xae))) bytes = 3;
    if (one == 0xe2 && two == 0x81 && within(three, 0xa0, 0xaf)) bytes = 3;
    if (one == 0xef && two == 0xbb && three == 0xbf) bytes = 3;                                    // byte order mark
    for (size_t i = at; i < at + bytes; ++i) text[i] = '?';
  }
  return text;
}

std::string format(const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = format_list(pattern, arguments);
  va_end(arguments);
  return text;
}

Status fail(ncclResult_t code, const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  Status status(code, format_list(pattern, arguments));
  va_end(arguments);
  return status;
}

Status fail_errno(const std::string &what, int error_number) {
  char text[128];
  // GNU's strerror_r() returns the text, which need not be in the buffer.
  return Status(ncclSystemError, what + ": " + strerror_r(error_number, text, sizeof text));
}

}  // namespace collc
