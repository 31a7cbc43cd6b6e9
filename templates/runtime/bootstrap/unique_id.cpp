#include "bootstrap/unique_id.h"

#include <cstring>

namespace collc {

bool is_our_id(const ncclUniqueId &id) { return std::memcmp(unpack(id).magic, kIdMagic, sizeof kIdMagic) == 0; }

Id unpack(const ncclUniqueId &id) {
  Id unpacked;
  std::memcpy(&unpacked, &id, sizeof unpacked);
  return unpacked;
}

std::string secret_of(const ncclUniqueId &id) { return hex_of(unpack(id).secret, kSecretBytes); }

bool equal_secrets(const void *one, const void *other, size_t size) {
  const auto *left = static_cast<const volatile unsigned char *>(one);
  const auto *right = static_cast<const volatile unsigned char *>(other);
  unsigned differs = 0;
  for (size_t i = 0; i < size; ++i) differs |= static_cast<unsigned>(left[i] ^ right[i]);
  return differs == 0;
}

std::string hex_of(const unsigned char *data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += format("%02x", data[i]);
  return text;
}

}  // namespace collc
