// Reads environment variables with bounds and reports invalid values. All of the runtime reads the environment through these
// functions only. They do not block. They must not run while another thread changes the environment.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace collc {

// Returns the text of a variable; null if it is unset or empty.
const char *read_text(const char *name);

// As read_text(), for a variable that names a file to load or read. Returns null in a program with more rights than its
// caller (setuid, file capabilities), because such a program must not open files that the caller names.
const char *read_path(const char *name);

// Sets `value` to the number in the variable, or to `fallback` if it is unset or empty. Fails with ncclInvalidUsage, and sets
// `fallback`, if the text is not a number in [least, most].
Status read_number(const char *name, double least, double most, double fallback, double *value);

// Sets `value` to the whole number in the variable, 0 if it is unset. Fails with ncclInvalidUsage if the text is not a whole
// number in [0, most]; `value` is unchanged then.
Status read_whole(const char *name, uint32_t most, uint32_t *value);

// Reads COLLC_CHUNK, the chunk size in bytes: at most 64 MiB and a multiple of 16, so that no chunk splits an element or a
// vector. 0 (unset) means the program's own chunk size. Fails with ncclInvalidUsage; `bytes` is 0 or unchanged then.
Status read_chunk(uint32_t *bytes);

bool is_set(const char *name);

// Returns the names of all variables that start with `prefix` and are not empty, in alphabetical order.
std::vector<std::string> names_with(const char *prefix);

// Returns the comma-separated words of a text, without spaces.
std::vector<std::string> split_list(const std::string &text);
// Returns the words of a variable; an empty list if it is unset or empty.
std::vector<std::string> read_list(const char *name);

}  // namespace collc
