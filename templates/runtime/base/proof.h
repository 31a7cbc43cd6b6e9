// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104). With HMACs both ends of a connection prove that they know the secret of a
// communicator, without sending it. Pure functions.
#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "base/bytes.h"

namespace collc {

using Proof = std::array<unsigned char, 32>;

Proof sha256(const unsigned char *data, size_t size);

// Returns the HMAC of `message` under `key`.
Proof prove(const std::string &key, const Bytes &message);

}  // namespace collc
