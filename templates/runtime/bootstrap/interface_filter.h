// Lists of network interfaces as NCCL_SOCKET_IFNAME takes them (NCCL's user guide, "Environment Variables").
#pragma once
#include <cstring>
#include <string>

#include "base/nccl_list.h"

namespace collc {

// Prefixes with commas between; `=` before the list: whole names; `^` before it: all others.
class InterfaceFilter {
 public:
  // `text`: nullptr or "" names nothing.
  explicit InterfaceFilter(const char *text) : list_(text) {}

  // Whether it says which interfaces to use, not only which ones not to.
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
