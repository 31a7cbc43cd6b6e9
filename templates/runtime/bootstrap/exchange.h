// Typed all-gathers of small values among the ranks of a communicator under construction. They block until all ranks have
// contributed.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace collc {

// One round: sends a message to all ranks and receives the messages of all ranks, in the order of the ranks.
using Exchange = std::function<Status(const Bytes &, std::vector<Bytes> *)>;

template <class T>
Bytes to_bytes(const T &value) {
  static_assert(std::is_trivially_copyable_v<T>, "it travels as the bytes that it is in memory");
  const auto *const data = reinterpret_cast<const unsigned char *>(&value);
  return Bytes(data, data + sizeof value);
}

// Decodes messages of `count` elements each. A message of another size comes from a rank that loads another build.
template <class T>
Status read_messages(const std::vector<Bytes> &messages, size_t count, std::vector<T> *all) {
  static_assert(std::is_trivially_copyable_v<T>, "it travels as the bytes that it is in memory");
  all->resize(messages.size() * count);
  for (size_t r = 0; r < messages.size(); ++r) {
    if (messages[r].size() != count * sizeof(T)) return fail(ncclInvalidUsage, "rank %zu loads another version of collc", r);
    if (count != 0) std::memcpy(all->data() + r * count, messages[r].data(), messages[r].size());
  }
  return {};
}

// Gathers one value of each rank, in the order of the ranks.
template <class T>
Status exchange(const Exchange &round, const T &mine, std::vector<T> *all) {
  std::vector<Bytes> messages;
  COLLC_RETURN_IF_FAILED(round(to_bytes(mine), &messages));
  return read_messages(messages, 1, all);
}

// Gathers vectors of equal length: element i of rank r is (*all)[r * mine.size() + i].
template <class T>
Status exchange_rows(const Exchange &round, const std::vector<T> &mine, std::vector<T> *all) {
  const auto *const data = reinterpret_cast<const unsigned char *>(mine.data());
  std::vector<Bytes> messages;
  COLLC_RETURN_IF_FAILED(round(Bytes(data, data + mine.size() * sizeof(T)), &messages));
  return read_messages(messages, mine.size(), all);
}

}  // namespace collc
