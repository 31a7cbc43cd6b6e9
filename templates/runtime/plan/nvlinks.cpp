#include "plan/nvlinks.h"

#include <algorithm>

#include "base/status.h"

namespace collc {
namespace {

constexpr size_t kMaxLinksTextBytes = 400;

std::string show_bus(uint64_t bus) {
  return format("%04x:%02x:%02x", static_cast<unsigned>(bus >> 32), static_cast<unsigned>(bus >> 16 & 0xff),
                static_cast<unsigned>(bus >> 8 & 0xff));
}

}  // namespace

uint32_t NvLinks::between(uint32_t a, uint32_t b) const {
  if (nranks == 0) return 0;
  return direct[size_t{a} * nranks + b] + std::min(into_switch[a], into_switch[b]);
}

NvLinks count_links(const std::vector<GpuPlace> &places, const std::vector<uint32_t> &machine) {
  const size_t n = places.size();
  const auto share_machine = [&machine](size_t a, size_t b) { return machine.empty() || machine[a] == machine[b]; };
  for (size_t a = 0; a < n; ++a) {
    if (places[a].has_links == 0 || places[a].bus == 0) return {};
    for (size_t b = 0; b < a; ++b)
      if (places[a].bus == places[b].bus && share_machine(a, b)) return {};
  }
  NvLinks links;
  links.nranks = static_cast<uint32_t>(n);
  links.into_switch.assign(n, 0);
  std::vector<uint32_t> reported(n * n, 0);  // [a * n + b]: links from a to b that the driver of a reports
  for (size_t a = 0; a < n; ++a)
    for (uint32_t l = 0; l < std::min(places[a].nlinks, kMaxGpuLinks); ++l) {
      const uint64_t far_end = places[a].links[l];
      if (far_end == kIntoSwitch) ++links.into_switch[a];
      for (size_t b = 0; b < n; ++b)
        if (far_end == places[b].bus && share_machine(a, b)) ++reported[a * n + b];
    }
  links.direct.assign(n * n, 0);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b)
      if (a != b) links.direct[a * n + b] = std::min(reported[a * n + b], reported[b * n + a]);
  return links;
}

std::string describe_links(const NvLinks &links, const std::vector<GpuPlace> &places) {
  std::string text;
  for (uint32_t rank = 0; rank < links.nranks && text.size() < kMaxLinksTextBytes; ++rank) {
    std::string counts;
    if (links.into_switch[rank] != 0) counts = format(" %u into switches", links.into_switch[rank]);
    for (uint32_t other = 0; other < links.nranks; ++other)
      if (const uint32_t count = links.direct[size_t{rank} * links.nranks + other]; count != 0)
        counts += format("%s %u to rank %u", counts.empty() ? "" : ",", count, other);
    text += format("%srank %u (%s):%s", text.empty() ? "" : "; ", rank, show_bus(places[rank].bus).c_str(),
                   counts.empty() ? " none" : counts.c_str());
  }
  return text;
}

}  // namespace collc
