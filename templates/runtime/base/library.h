// Shared libraries that users name.
#pragma once
#include <string>

namespace collc {

// Opens a library as dlopen() does; null: `why` says why not, in one printable line. A path must lead to a regular file, because
// dlopen() of a named pipe waits for somebody who writes to it.
void *open_library(const std::string &name, int flags, std::string *why);

}  // namespace collc
