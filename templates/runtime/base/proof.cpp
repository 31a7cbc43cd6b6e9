#include "base/proof.h"

#include <cstdint>
#include <cstring>

namespace collc {
namespace {

constexpr size_t kBlock = 64;

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate(uint32_t word, unsigned bits) { return word >> bits | word << (32 - bits); }

// Mixes one block of 64 bytes into the state.
void compress(uint32_t (&state)[8], const unsigned char *block) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i)
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t low = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t high = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  uint32_t v[8];
  std::memcpy(v, state, sizeof v);
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t high = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
    const uint32_t one = v[7] + high + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRounds[i] + w[i];
    const uint32_t low = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
    const uint32_t two = low + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    for (size_t k = 7; k > 0; --k) v[k] = v[k - 1];
    v[4] += one;
    v[0] = one + two;
  }
  for (size_t k = 0; k < 8; ++k) state[k] += v[k];
}

}  // namespace

Proof sha256(const unsigned char *data, size_t size) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  Bytes padded(data, data + size);
  padded.push_back(0x80);
  while (padded.size() % kBlock != kBlock - 8) padded.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(static_cast<unsigned char>(uint64_t{size} * 8 >> shift));
  for (size_t at = 0; at < padded.size(); at += kBlock) compress(state, padded.data() + at);
  Proof proof = {};
  for (size_t i = 0; i < proof.size(); ++i) proof[i] = static_cast<unsigned char>(state[i / 4] >> (24 - 8 * (i % 4)));
  return proof;
}

Proof prove(const std::string &key, const Bytes &message) {
  Bytes own(key.begin(), key.end());
  if (own.size() > kBlock) {
    const Proof shorter = sha256(own.data(), own.size());
    own.assign(shorter.begin(), shorter.end());
  }
  own.resize(kBlock);
  Bytes inner = own, outer = own;
  for (unsigned char &byte : inner) byte ^= 0x36;
  for (unsigned char &byte : outer) byte ^= 0x5c;
  inner.insert(inner.end(), message.begin(), message.end());
  const Proof first = sha256(inner.data(), inner.size());
  outer.insert(outer.end(), first.begin(), first.end());
  return sha256(outer.data(), outer.size());
}

}  // namespace collc
