// Matches RDMA ports against a list in the form of NCCL_IB_HCA (NCCL's user guide, "Environment Variables"; parseStringList
// and matchIfList in NCCL's src/misc/utils.cc). collc/network/hca.py has the same rules in Python; a test compares them.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "base/nccl_list.h"
#include "wire/nics.h"

namespace collc {

// Comma-separated entries: a prefix of a device name, and optionally a colon and a port, which is compared as a number. "="
// before the list means whole device names; "^" before it means all ports but these. A list without entries matches every
// port, so "^" without entries matches none.
class HcaFilter {
 public:
  explicit HcaFilter(const char *text) : list_(text) {
    for (const std::string &entry : list_.entries)
      if (const size_t colon = entry.find(':'); colon != 0) entries_.push_back({entry.substr(0, colon), port_of(entry)});
  }

  // Returns whether the list selects ports; a list after "^" only excludes some.
  bool chooses() const { return !list_.excludes && !entries_.empty(); }
  // Returns whether a port ("mlx5_0:1") may be used.
  bool takes(const std::string &port) const {
    const bool named = entries_.empty() || place_of(port) < entries_.size();
    return named != list_.excludes;
  }
  size_t count() const { return entries_.size(); }
  // Returns the index of the first entry that names a port; the number of entries if none does.
  size_t place_of(const std::string &port) const {
    const std::string device = port.substr(0, port.find(':'));
    const long number = port_of(port);
    const auto names = [&](const Entry &entry) {
      const bool same = list_.whole ? device == entry.device : device.compare(0, entry.device.size(), entry.device) == 0;
      return same && (entry.port == kAnyPort || entry.port == number);
    };
    return static_cast<size_t>(std::find_if(entries_.begin(), entries_.end(), names) - entries_.begin());
  }

 private:
  static constexpr long kAnyPort = -1;
  struct Entry {
    std::string device;
    long port;
  };

  // Returns the number after the colon as C parses it: 0, which is no port, if it is not a number.
  static long port_of(const std::string &text) {
    const size_t colon = text.find(':');
    return colon == std::string::npos ? kAnyPort : std::strtol(text.c_str() + colon + 1, nullptr, 10);
  }

  NcclList list_;
  std::vector<Entry> entries_;
};

// An interface of a device that a list names, and its place among all interfaces of the list, counted from 1.
struct PlacedInterface {
  std::string name;
  uint32_t place;
};

// Returns the interfaces in the order of the list. An entry whose device is not on this machine takes up a place, so that
// later entries have the same places on machines that have this device.
inline std::vector<PlacedInterface> place_named(const HcaFilter &filter, const std::vector<RdmaInterface> &all) {
  std::vector<PlacedInterface> placed;
  uint32_t next = 1;
  for (size_t entry = 0; entry < filter.count(); ++entry) {
    const uint32_t first = next;
    for (const RdmaInterface &one : all) {
      const auto same = [&one](const PlacedInterface &other) { return other.name == one.interface; };
      if (filter.place_of(one.port) == entry && std::none_of(placed.begin(), placed.end(), same))
        placed.push_back({one.interface, next++});
    }
    const bool is_here =
        std::any_of(all.begin(), all.end(), [&](const RdmaInterface &one) { return filter.place_of(one.port) == entry; });
    if (next == first && !is_here) ++next;
  }
  return placed;
}

// Returns the ports of `ports` ("mlx5_0:1") that the list lets pass.
inline std::vector<std::string> passing_ports(const char *list, const std::vector<std::string> &ports) {
  const HcaFilter filter(list);
  std::vector<std::string> passing;
  std::copy_if(ports.begin(), ports.end(), std::back_inserter(passing),
               [&](const std::string &port) { return filter.takes(port); });
  return passing;
}

}  // namespace collc
