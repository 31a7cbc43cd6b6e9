// Messages for users: the last error of a thread, and log lines on stderr.
#pragma once
#include <string>

#include "base/status.h"

namespace collc {

// The sentence of the last error in this thread; if it had none, of the last error in any thread. Never null.
const char *last_error();

// Has last_error() say what a call of this thread has asked about: no failure of the call, so nothing is logged.
void keep_for_last_error(const Status &status);

// Remembers a failed status for last_error() and logs it; returns its code.
ncclResult_t report(const Status &status);

// COLLC_DEBUG=WARN, INFO or TRACE, where it is unset NCCL_DEBUG: one line on stderr per event, in NCCL's spirit.
enum class LogLevel { kNone = 0, kWarn = 1, kInfo = 2, kTrace = 3 };
bool logs(LogLevel level);
__attribute__((format(printf, 2, 3))) void log(LogLevel level, const char *pattern, ...);

// Writes a line to stderr whatever the variables say. All lines of the library go through this function or log(): they are
// printable, and lines of several processes do not mix.
void say(const std::string &text);
// The same, once in a process for each text.
void say_once(const std::string &text);

}  // namespace collc
