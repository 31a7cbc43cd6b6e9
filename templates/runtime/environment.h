// Environment variables, read once per use with bounds. Whoever mistypes one hears of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "status.h"

namespace collc {

// The value of `name`, or `fallback` if it is unset or empty; ncclInvalidUsage when it is no number of [least, most].
Status read_number(const char *name, double least, double most, double fallback, double *value);

bool is_set(const char *name);

// The words between the commas of a variable; empty if it is unset.
std::vector<std::string> read_list(const char *name);

}  // namespace collc
