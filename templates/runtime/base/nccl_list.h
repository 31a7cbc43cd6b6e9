// Lists as NCCL's variables NCCL_SOCKET_IFNAME and NCCL_IB_HCA have them (parseStringList in its src/misc/utils.cc).
#pragma once
#include <cstring>
#include <string>
#include <vector>

namespace collc {

// Entries with commas between; `=` before the list: whole names, not prefixes; `^` before it: all others.
struct NcclList {
  // `at`: nullptr or "" has no entries.
  explicit NcclList(const char *at) {
    if (at == nullptr) return;
    excludes = *at == '^';
    if (excludes) ++at;
    whole = *at == '=';
    if (whole) ++at;
    for (;;) {
      const size_t length = std::strcspn(at, ",");
      if (length != 0) entries.emplace_back(at, length);
      if (at[length] == '\0') return;
      at += length + 1;
    }
  }

  bool excludes = false, whole = false;
  std::vector<std::string> entries;
};

}  // namespace collc
