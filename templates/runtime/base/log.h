// Messages for users: the last error of a thread, and log lines on stderr. Any thread may call these functions. Writing a log
// line may block on stderr; reading or setting the last error only waits for a short lock.
#pragma once
#include <string>

#include "base/status.h"

namespace collc {

// Returns the text of the last error in this thread; if this thread had no error, of the last error in any thread. Never
// null.
const char *last_error();

// Sets the text of last_error() without logging it. For states that a call of this thread has queried
// (ncclCommGetAsyncError), because the query itself has not failed.
void keep_for_last_error(const Status &status);

// Stores a failed status for last_error(), logs it, and returns its code. Success and ncclInProgress are only returned.
ncclResult_t report(const Status &status);

// COLLC_DEBUG=WARN, INFO or TRACE; if it is unset, NCCL_DEBUG. Each event is one line on stderr, as in NCCL.
enum class LogLevel { kNone = 0, kWarn = 1, kInfo = 2, kTrace = 3 };
bool logs(LogLevel level);
__attribute__((format(printf, 2, 3))) void log(LogLevel level, const char *pattern, ...);

// Writes a line to stderr at every log level. All lines of the library go through this function or log(): they contain only
// printable characters, and lines of several processes do not mix.
void say(const std::string &text);
// Writes a line as say() does, but at most once per process for equal texts.
void say_once(const std::string &text);

}  // namespace collc
