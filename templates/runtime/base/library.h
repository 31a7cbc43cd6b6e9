// Opens shared libraries that users name. May block on the file system and runs the constructors of the library.
#pragma once
#include <string>

namespace collc {

// Opens a library as dlopen() does. Returns null on failure and sets `why` to the reason, in one printable line. A path must
// lead to a regular file, because dlopen() of a named pipe would wait for a writer.
void *open_library(const std::string &name, int flags, std::string *why);

}  // namespace collc
