// Matches names of network interfaces against a list in the form of NCCL_SOCKET_IFNAME (NCCL's user guide, "Environment
// Variables").
#pragma once
#include <cstring>
#include <string>

#include "base/nccl_list.h"

namespace collc {

// Comma-separated prefixes. "=" before the list means whole names; "^" before it means all interfaces but these.
class InterfaceFilter {
 public:
  // `text`: nullptr or "" matches every interface.
  explicit InterfaceFilter(const char *text) : list_(text) {}

  // Returns whether the list selects interfaces; an empty list does not, and a list after "^" only excludes some.
  bool chooses() const { return !list_.excludes && !list_.entries.empty(); }
  bool takes(const char *interface) const {
    if (list_.entries.empty()) return true;
    bool found = false;
    for (const std::string &name : list_.entries)
      found |= std::strncmp(interface, name.c_str(), list_.whole ? name.size() + 1 : name.size()) == 0;
    return found != list_.excludes;
  }

 private:
  NcclList list_;
};

}  // namespace collc
