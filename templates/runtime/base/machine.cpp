#include "base/machine.h"

#include <sys/stat.h>

#include <cstdio>

#include "base/environment.h"

namespace collc {

uint64_t hash_of(const std::string &text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t this_machine() {
  if (const char *named = read_text("COLLC_HOSTID")) return hash_of(std::string("COLLC_HOSTID=") + named);
  char text[64] = "";
  if (std::FILE *file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
  return hash_of(text);
}

uint64_t this_network() {
  struct stat found;
  return stat("/proc/self/ns/net", &found) == 0 ? static_cast<uint64_t>(found.st_ino) : 0;
}

}  // namespace collc
