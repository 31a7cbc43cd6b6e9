// Reads files that environment variables name. May block on the file system.
#pragma once
#include <string>

#include "base/status.h"

namespace collc {

// Sets `text` to the contents of a regular file of at most 16 MiB. The error says why the file cannot be read, as the end of
// a sentence whose subject the caller puts in front ("is no regular file").
Status read_small_file(const char *path, std::string *text);

}  // namespace collc
