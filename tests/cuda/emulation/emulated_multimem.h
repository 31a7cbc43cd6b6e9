// The verbs of multicast addresses on the emulator, where such an address stands for a set of memories: a sum reads each of
// them, in any order, and a store writes each.
#pragma once

namespace collc::cuda {

inline std::vector<Pack *> members_of(const Pack *at) {
  std::vector<Pack *> found;
  for (char *place : emulation::emulator().members(at, sizeof(Pack))) found.push_back(reinterpret_cast<Pack *>(place));
  return found;
}

// The bytes of the last pack beyond the end of a chunk may be unwritten.
template <class T>
Pack load_member(const Pack *from) {
  Pack value{};
  for (size_t at = 0; at < sizeof(Pack); at += sizeof(T)) {
    const char *place = reinterpret_cast<const char *>(from) + at;
    if (at != 0 && !emulation::emulator().is_written(place)) break;
    const T element = load(reinterpret_cast<const T *>(place));
    std::memcpy(reinterpret_cast<char *>(&value) + at, &element, sizeof(T));
  }
  return value;
}

template <class T, class Op>
Pack switch_sum(const Pack *from, uint64_t flip) {
  static_assert(kSwitchAdds<T, Op>);
  const std::vector<Pack *> members = members_of(from);
  Partial<T, Pack> value(load_member<T>(members[0]));
  for (size_t m = 1; m < members.size(); ++m) value.template add<Op>(load_member<T>(members[m]), flip);
  return value.rounded();
}

inline void switch_store(Pack *to, const Pack &value) {
  for (Pack *member : members_of(to)) store(member, value);
}

// The emulator translates every alias to one address before an access, so no fence is necessary.
inline void alias_fence() {}

}  // namespace collc::cuda
