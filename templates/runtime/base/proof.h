// Proofs that both ends of a connection know the secret of a communicator: HMAC-SHA256 (RFC 2104, FIPS 180-4).
#pragma once
#include <array>
#include <cstddef>
#include <string>

#include "base/bytes.h"

namespace collc {

using Proof = std::array<unsigned char, 32>;

Proof sha256(const unsigned char *data, size_t size);

// Of `message` under `key`.
Proof prove(const std::string &key, const Bytes &message);

}  // namespace collc
