// Chooses the interfaces of machines that are joined as rails (tcp_address.h).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bootstrap/sockets.h"
#include "wire/rails.h"
#include "wire/tcp_address.h"

namespace collc {
namespace {

bool may_join(const TcpAddress &a, const TcpAddress &b) {
  if (a.place.family != b.place.family) return false;
  return a.fabric == 0 || b.fabric == 0 || a.fabric == b.fabric;
}

bool share_network(const TcpAddress &a, const TcpAddress &b) { return is_one_network(a.place, a.prefix, b.place, b.prefix); }

bool are_joined(const TcpAddress &a, const TcpAddress &b) { return may_join(a, b) && share_network(a, b); }

// Returns whether two interfaces of one machine are the same.
bool are_same(const TcpAddress &a, const TcpAddress &b) {
  return a.place.family == b.place.family && std::memcmp(a.place.address, b.place.address, sizeof a.place.address) == 0 &&
         std::strcmp(a.interface, b.interface) == 0;
}

bool is_nic(const TcpAddress &a) { return a.source == InterfaceSource::kNic; }

// Returns the numbers 0 to count - 1.
std::vector<size_t> places(size_t count) {
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

// Collects the rails; a rail is an index in the list of every machine.
class Pairing {
 public:
  explicit Pairing(const std::vector<std::vector<TcpAddress>> &machines) : machines_(machines) {
    for (const std::vector<TcpAddress> &addresses : machines) {
      is_used_.emplace_back(addresses.size());
      order_.push_back(places(addresses.size()));
      min_interfaces_ = std::min(min_interfaces_, addresses.size());
      for (const TcpAddress &a : addresses) {
        all_named_ &= a.source == InterfaceSource::kNet;
        all_selected_ &= a.source == InterfaceSource::kNet || a.source == InterfaceSource::kList;
      }
    }
  }

  bool all_named() const { return all_named_; }

  std::vector<std::vector<size_t>> run() {
    if (!all_selected_) pair_nics();
    if (rails_.empty()) pair_others();
    if (rails_.empty()) add_usual();
    if (!all_named_)
      std::stable_sort(rails_.begin(), rails_.end(),
                       [this](const auto &a, const auto &b) { return gpu_distance(a) < gpu_distance(b); });
    return std::move(rails_);
  }

 private:
  const TcpAddress &at(size_t machine, size_t place) const { return machines_[machine][place]; }

  void pair_nics() {
    for (size_t m = 0; m < machines_.size(); ++m)
      std::stable_sort(order_[m].begin(), order_[m].end(), [this, m](size_t a, size_t b) {
        const auto rank = [this, m](size_t place) { return at(m, place).nic == 0 ? UINT32_MAX : at(m, place).nic; };
        return rank(a) < rank(b);
      });
    add_fitting(
        [this](size_t k, size_t m, size_t place) { return are_joined(at(0, k), at(m, place)) && is_new_network(m, place); },
        [this](const std::vector<size_t> &rail) { return has_nic(rail); });
    // Networks that are joined by routers, where one machine may lack a NIC that the others have.
    const auto may_join_first = [this](size_t k, size_t m, size_t place) {
      return is_nic(at(m, place)) && may_join(at(0, k), at(m, place)) && is_new_network(m, place);
    };
    if (rails_.empty())
      add_fitting(
          [&](size_t k, size_t m, size_t place) { return at(m, place).nic == at(0, k).nic && may_join_first(k, m, place); });
    if (rails_.empty()) add_fitting(may_join_first);
    for (std::vector<size_t> &order : order_) order = places(order.size());
  }

  void pair_others() {
    const auto are_joined_with_first = [this](size_t k, size_t m, size_t place) { return are_joined(at(0, k), at(m, place)); };
    const auto may_join_first = [this](size_t k, size_t m, size_t place) { return may_join(at(0, k), at(m, place)); };
    if (all_named_) {
      add_fitting([](size_t, size_t, size_t) { return true; });
      return;
    }
    // The interfaces on which machines would meet without rails.
    if (!all_selected_) add_usual();
    add_fitting(are_joined_with_first);
    if (all_selected_) add_fitting(may_join_first);
  }

  void add_usual() { add_rail(std::vector<size_t>(machines_.size(), 0)); }

  void add_rail(std::vector<size_t> rail) {
    for (size_t m = 0; m < rail.size(); ++m)
      for (size_t place = 0; place < is_used_[m].size(); ++place)
        if (place == rail[m] || (at(m, place).nic != 0 && at(m, place).nic == at(m, rail[m]).nic)) is_used_[m][place] = true;
    rails_.push_back(std::move(rail));
  }

  // For each interface of the first machine, finds an unused fitting interface of every other machine. Takes them as a rail
  // if all have one.
  template <typename Fits, typename Accepts>
  void add_fitting(const Fits &fits, const Accepts &accepts) {
    for (const size_t k : order_[0]) {
      if (all_selected_ && rails_.size() >= min_interfaces_) return;
      std::vector<size_t> rail;
      for (size_t m = 0; m < machines_.size() && rail.size() == m; ++m)
        for (const size_t place : m == 0 ? std::vector<size_t>{k} : order_[m])
          if (!is_used_[m][place] && fits(k, m, place)) {
            rail.push_back(place);
            break;
          }
      if (rail.size() == machines_.size() && accepts(rail)) add_rail(std::move(rail));
    }
  }
  template <typename Fits>
  void add_fitting(const Fits &fits) {
    add_fitting(fits, [](const std::vector<size_t> &) { return true; });
  }

  bool has_nic(const std::vector<size_t> &rail) const {
    bool any = false, all = true;
    for (size_t m = 0; m < rail.size(); ++m) {
      any |= is_nic(at(m, rail[m]));
      all &= at(m, rail[m]).source != InterfaceSource::kNobody;
    }
    return any && all;
  }

  // Two NICs of a machine in one network answer for each other's addresses. So one of them is enough, unless the user selects
  // both.
  bool is_new_network(size_t machine, size_t place) const {
    return std::none_of(rails_.begin(), rails_.end(), [&](const std::vector<size_t> &rail) {
      return are_joined(at(machine, place), at(machine, rail[machine]));
    });
  }

  uint64_t gpu_distance(const std::vector<size_t> &rail) const {
    uint64_t sum = 0;
    for (size_t m = 0; m < rail.size(); ++m) sum += at(m, rail[m]).gpu_distance;
    return sum;
  }

  const std::vector<std::vector<TcpAddress>> &machines_;
  std::vector<std::vector<bool>> is_used_;
  std::vector<std::vector<size_t>> order_;  // order of a machine's interfaces for the search
  std::vector<std::vector<size_t>> rails_;
  size_t min_interfaces_ = kMaxRails;
  bool all_named_ = true, all_selected_ = true;
};

}  // namespace

bool pair_rails(std::vector<std::vector<TcpAddress>> *machines) {
  bool any_has_spare = false;
  uint32_t streams = kMaxRails;
  std::vector<TcpAddress> spares;
  for (std::vector<TcpAddress> &addresses : *machines) {
    const bool has_spare = addresses.size() > 1 && addresses.back().source == InterfaceSource::kSpare;
    any_has_spare |= has_spare;
    spares.push_back(has_spare ? addresses.back() : addresses[0]);
    if (has_spare) addresses.pop_back();
    streams = std::min(streams, addresses[0].streams);
  }
  Pairing pairing(*machines);
  std::vector<std::vector<size_t>> rails = pairing.run();
  // If the only rail joins the usual interfaces, the machines meet as if there were no other interfaces.
  bool is_usual = any_has_spare && rails.size() == 1;
  for (size_t m = 0; is_usual && m < machines->size(); ++m) is_usual = are_same((*machines)[m][rails[0][m]], spares[m]);
  const bool has_spare = any_has_spare && !pairing.all_named() && !is_usual;
  rails.resize(std::min<size_t>(rails.size(), kMaxRails / streams));
  for (size_t m = 0; m < machines->size(); ++m) {
    std::vector<TcpAddress> result;
    for (const std::vector<size_t> &rail : rails) result.push_back(is_usual ? spares[m] : (*machines)[m][rail[m]]);
    if (has_spare) result.push_back(spares[m]);
    for (TcpAddress &a : result) a.streams = streams;
    (*machines)[m] = std::move(result);
  }
  return has_spare;
}

}  // namespace collc
