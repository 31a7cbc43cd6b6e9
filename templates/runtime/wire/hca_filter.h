// Lists of RDMA ports as NCCL_IB_HCA takes them (NCCL's user guide, "Environment Variables"; parseStringList and matchIfList in its
// src/misc/utils.cc). collc/network/hca.py is the same rule in Python; a test compares the two.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "base/nccl_list.h"
#include "wire/cards.h"

namespace collc {

// Entries with commas between: a prefix of devices, and after a colon the number of a port, compared as a number; `=` before the
// list: whole names of devices; `^` before it: all others. Without entries every port is named, so that `^` alone leaves none.
class HcaFilter {
 public:
  explicit HcaFilter(const char *text) : list_(text) {
    for (const std::string &entry : list_.entries)
      if (const size_t colon = entry.find(':'); colon != 0) entries_.push_back({entry.substr(0, colon), port_of(entry)});
  }

  // Whether it says which ports to use, not only which ones not to.
  bool chooses() const { return !list_.excludes && !entries_.empty(); }
  // Whether a port ("mlx5_0:1") may be used.
  bool takes(const std::string &port) const {
    const bool named = entries_.empty() || place_of(port) < entries_.size();
    return named != list_.excludes;
  }
  size_t count() const { return entries_.size(); }
  // The first entry that names a port, counted from 0; as many as there are where none does.
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

  // What follows the colon as C reads numbers: 0, which no port has, where it is none.
  static long port_of(const std::string &text) {
    const size_t colon = text.find(':');
    return colon == std::string::npos ? kAnyPort : std::strtol(text.c_str() + colon + 1, nullptr, 10);
  }

  NcclList list_;
  std::vector<Entry> entries_;
};

// An interface of a device that a list names, and its number among all of the list's, from 1.
struct PlacedInterface {
  std::string name;
  uint32_t place;
};

// In the order of the list. An entry whose device is not here keeps a place all the same, so that those behind it belong to the
// same ones of other machines, which have it.
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

// Those of `ports` ("mlx5_0:1") that pass.
inline std::vector<std::string> passing_ports(const char *list, const std::vector<std::string> &ports) {
  const HcaFilter filter(list);
  std::vector<std::string> passing;
  std::copy_if(ports.begin(), ports.end(), std::back_inserter(passing),
               [&](const std::string &port) { return filter.takes(port); });
  return passing;
}

}  // namespace collc
