#include "base/library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include "base/status.h"

namespace collc {

void *open_library(const std::string &name, int flags, std::string *why) {
  struct stat facts;
  // The loader searches for a name without a slash, so only paths are checked.
  if (name.find('/') != std::string::npos && stat(name.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode)) {
    *why = printable(name) + " is no regular file";
    return nullptr;
  }
  void *const library = dlopen(name.c_str(), flags);
  const char *const reason = library == nullptr ? dlerror() : nullptr;
  if (library == nullptr) *why = printable(reason != nullptr ? reason : name);
  return library;
}

}  // namespace collc
