// Environment variables, read once per use with bounds. Invalid values are reported. Nothing else in the runtime
// asks the environment.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace collc {

// The text of a variable; null if it is unset or empty.
const char *read_text(const char *name);

// The same for a variable that names a file to load or read. A program with more rights than its caller (setuid, file
// capabilities) must not open what the caller names, so there it is as if unset.
const char *read_path(const char *name);

// The value of `name`, or `fallback` if it is unset or empty; ncclInvalidUsage when it is no number of [least, most].
Status read_number(const char *name, double least, double most, double fallback, double *value);

// The same for a whole number; 0 where the variable is unset or 0.
Status read_whole(const char *name, uint32_t most, uint32_t *value);

// COLLC_CHUNK: bytes that a chunk may have, a multiple of 16 (no chunk may split an element or a vector) up to 64 MiB; 0: as
// the program says, also where the value is wrong.
Status read_chunk(uint32_t *bytes);

bool is_set(const char *name);

// The names of all variables that begin so and have a value, in alphabetical order.
std::vector<std::string> names_with(const char *prefix);

// The words between the commas of a text, without spaces.
std::vector<std::string> split_list(const std::string &text);
// The same of a variable; empty if it is unset.
std::vector<std::string> read_list(const char *name);

}  // namespace collc
