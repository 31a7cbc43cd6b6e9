// Reading a file that a variable names.
#pragma once
#include <string>

#include "base/status.h"

namespace collc {

// The text of a regular file of at most 16 MiB; says why it cannot be read.
Status read_small_file(const char *path, std::string *text);

}  // namespace collc
