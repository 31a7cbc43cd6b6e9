// Parses lists in the form of NCCL_SOCKET_IFNAME and NCCL_IB_HCA (parseStringList in NCCL's src/misc/utils.cc).
#pragma once
#include <cstring>
#include <string>
#include <vector>

namespace collc {

// Comma-separated entries. "=" before the list means whole names instead of prefixes; "^" before it means all names but
// these.
struct NcclList {
  // `at`: the text; nullptr or "" is a list without entries.
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
