// Lists of network interfaces as NCCL_SOCKET_IFNAME takes them (NCCL's user guide, "Environment Variables").
#pragma once
#include <cstring>
#include <string>
#include <vector>

namespace collc {

// Prefixes with commas between; `=` before the list: whole names; `^` before it: all others.
class InterfaceFilter {
 public:
  // `text`: nullptr or "" names nothing.
  explicit InterfaceFilter(const char *text) {
    const char *at = text != nullptr ? text : "";
    excludes_ = *at == '^';
    if (excludes_) ++at;
    whole_ = *at == '=';
    if (whole_) ++at;
    for (;;) {
      const size_t length = std::strcspn(at, ",");
      if (length != 0) names_.emplace_back(at, length);
      if (at[length] == '\0') return;
      at += length + 1;
    }
  }

  // Whether it says which interfaces to use, not only which ones not to.
  bool chooses() const { return !excludes_ && !names_.empty(); }
  bool takes(const char *interface) const {
    if (names_.empty()) return true;
    bool found = false;
    for (const std::string &name : names_)
      found |= std::strncmp(interface, name.c_str(), whole_ ? name.size() + 1 : name.size()) == 0;
    return found != excludes_;
  }

 private:
  bool excludes_ = false, whole_ = false;
  std::vector<std::string> names_;
};

}  // namespace collc
