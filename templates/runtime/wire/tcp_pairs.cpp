// Chooses the interfaces of machines that are joined as rails (tcp_address.h).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bootstrap/sockets.h"
#include "wire/rails.h"
#include "wire/tcp_address.h"

namespace collc {
namespace {

bool may_join(const TcpAddress &one, const TcpAddress &other) {
  if (one.place.family != other.place.family) return false;
  return one.fabric == 0 || other.fabric == 0 || one.fabric == other.fabric;
}

bool share_network(const TcpAddress &one, const TcpAddress &other) {
  return is_one_network(one.place, one.prefix, other.place, other.prefix);
}

bool are_joined(const TcpAddress &one, const TcpAddress &other) { return may_join(one, other) && share_network(one, other); }

// Returns whether two interfaces of one machine are the same.
bool are_same(const TcpAddress &one, const TcpAddress &other) {
  return one.place.family == other.place.family &&
         std::memcmp(one.place.address, other.place.address, sizeof one.place.address) == 0 &&
         std::strcmp(one.interface, other.interface) == 0;
}

bool is_card(const TcpAddress &one) { return one.wish == TcpWish::kCard; }

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
    for (const std::vector<TcpAddress> &machine : machines) {
      used_.emplace_back(machine.size());
      order_.push_back(places(machine.size()));
      least_ = std::min(least_, machine.size());
      for (const TcpAddress &one : machine) {
        named_ &= one.wish == TcpWish::kNet;
        asked_ &= one.wish == TcpWish::kNet || one.wish == TcpWish::kList;
      }
    }
  }

  bool named() const { return named_; }

  std::vector<std::vector<size_t>> run() {
    if (!asked_) pair_cards();
    if (rails_.empty()) pair_others();
    if (rails_.empty()) take_first();
    if (!named_)
      std::stable_sort(rails_.begin(), rails_.end(), [this](const auto &a, const auto &b) { return far(a) < far(b); });
    return std::move(rails_);
  }

 private:
  const TcpAddress &at(size_t machine, size_t place) const { return machines_[machine][place]; }

  void pair_cards() {
    for (size_t m = 0; m < machines_.size(); ++m)
      std::stable_sort(order_[m].begin(), order_[m].end(), [this, m](size_t a, size_t b) {
        const auto rank = [this, m](size_t place) { return at(m, place).card == 0 ? UINT32_MAX : at(m, place).card; };
        return rank(a) < rank(b);
      });
    take_all([this](size_t k, size_t m, size_t place) { return are_joined(at(0, k), at(m, place)) && is_apart(m, place); },
             [this](const std::vector<size_t> &rail) { return has_card(rail); });
    // Networks that are joined by routers, where one machine may lack a NIC that the others have.
    const auto possible = [this](size_t k, size_t m, size_t place) {
      return is_card(at(m, place)) && may_join(at(0, k), at(m, place)) && is_apart(m, place);
    };
    if (rails_.empty())
      take_all([&](size_t k, size_t m, size_t place) { return at(m, place).card == at(0, k).card && possible(k, m, place); });
    if (rails_.empty()) take_all(possible);
    for (std::vector<size_t> &order : order_) order = places(order.size());
  }

  void pair_others() {
    const auto joined = [this](size_t k, size_t m, size_t place) { return are_joined(at(0, k), at(m, place)); };
    const auto possible = [this](size_t k, size_t m, size_t place) { return may_join(at(0, k), at(m, place)); };
    if (named_) {
      take_all([](size_t, size_t, size_t) { return true; });
      return;
    }
    // The interfaces on which machines would meet without rails.
    if (!asked_) take_first();
    take_all(joined);
    if (asked_) take_all(possible);
  }

  void take_first() { take(std::vector<size_t>(machines_.size(), 0)); }

  void take(std::vector<size_t> rail) {
    for (size_t m = 0; m < rail.size(); ++m)
      for (size_t place = 0; place < used_[m].size(); ++place)
        if (place == rail[m] || (at(m, place).card != 0 && at(m, place).card == at(m, rail[m]).card)) used_[m][place] = true;
    rails_.push_back(std::move(rail));
  }

  // For each interface of the first machine, finds an unused fitting interface of every other machine. Takes them as a rail
  // if all have one.
  template <typename Fit, typename Wanted>
  void take_all(const Fit &fit, const Wanted &wanted) {
    for (const size_t k : order_[0]) {
      if (asked_ && rails_.size() >= least_) return;
      std::vector<size_t> rail;
      for (size_t m = 0; m < machines_.size() && rail.size() == m; ++m)
        for (const size_t place : m == 0 ? std::vector<size_t>{k} : order_[m])
          if (!used_[m][place] && fit(k, m, place)) {
            rail.push_back(place);
            break;
          }
      if (rail.size() == machines_.size() && wanted(rail)) take(std::move(rail));
    }
  }
  template <typename Fit>
  void take_all(const Fit &fit) {
    take_all(fit, [](const std::vector<size_t> &) { return true; });
  }

  bool has_card(const std::vector<size_t> &rail) const {
    bool any = false, all = true;
    for (size_t m = 0; m < rail.size(); ++m) {
      any |= is_card(at(m, rail[m]));
      all &= at(m, rail[m]).wish != TcpWish::kNobody;
    }
    return any && all;
  }

  // Two NICs of a machine in one network answer for each other's addresses. So one of them is enough, unless the user selects
  // both.
  bool is_apart(size_t machine, size_t place) const {
    return std::none_of(rails_.begin(), rails_.end(), [&](const std::vector<size_t> &before) {
      return are_joined(at(machine, place), at(machine, before[machine]));
    });
  }

  uint64_t far(const std::vector<size_t> &rail) const {
    uint64_t sum = 0;
    for (size_t m = 0; m < rail.size(); ++m) sum += at(m, rail[m]).far;
    return sum;
  }

  const std::vector<std::vector<TcpAddress>> &machines_;
  std::vector<std::vector<bool>> used_;
  std::vector<std::vector<size_t>> order_;  // order of a machine's interfaces for the search
  std::vector<std::vector<size_t>> rails_;
  size_t least_ = kMostRails;
  bool named_ = true, asked_ = true;
};

}  // namespace

bool pair_rails(std::vector<std::vector<TcpAddress>> *machines) {
  bool any_spare = false;
  uint32_t streams = kMostRails;
  std::vector<TcpAddress> spares;
  for (std::vector<TcpAddress> &machine : *machines) {
    const bool has_spare = machine.size() > 1 && machine.back().wish == TcpWish::kSpare;
    any_spare |= has_spare;
    spares.push_back(has_spare ? machine.back() : machine[0]);
    if (has_spare) machine.pop_back();
    streams = std::min(streams, machine[0].streams);
  }
  Pairing pairing(*machines);
  std::vector<std::vector<size_t>> rails = pairing.run();
  // If the only rail joins the usual interfaces, the machines meet as if there were no other interfaces.
  bool usual = any_spare && rails.size() == 1;
  for (size_t m = 0; usual && m < machines->size(); ++m) usual = are_same((*machines)[m][rails[0][m]], spares[m]);
  const bool spare = any_spare && !pairing.named() && !usual;
  rails.resize(std::min<size_t>(rails.size(), kMostRails / streams));
  for (size_t m = 0; m < machines->size(); ++m) {
    std::vector<TcpAddress> kept;
    for (const std::vector<size_t> &rail : rails) kept.push_back(usual ? spares[m] : (*machines)[m][rail[m]]);
    if (spare) kept.push_back(spares[m]);
    for (TcpAddress &one : kept) one.streams = streams;
    (*machines)[m] = std::move(kept);
  }
  return spare;
}

}  // namespace collc
