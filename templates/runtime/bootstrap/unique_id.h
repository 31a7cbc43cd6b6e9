// The contents of collc's ncclUniqueId, and the wire format between ranks and listener.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/random.h"
#include "base/status.h"

namespace collc {

constexpr char kIdMagic[8] = {'c', 'o', 'l', 'l', 'c', 'i', 'd', '2'};
constexpr size_t kSecretBytes = 16;
constexpr size_t kNameBytes = 16;
constexpr uint32_t kHelloMagic = 0x636c6c34;  // "cll4"
constexpr uint32_t kMostMessage = 1 << 20;

struct Id {
  char magic[8];
  // Where other servers reach the listener; family 0: nowhere. In network order.
  uint16_t port;
  uint16_t family;  // AF_INET or AF_INET6
  uint32_t scope;
  unsigned char address[16];
  unsigned char secret[kSecretBytes];
  unsigned char name[kNameBytes];  // of the listener's local socket: no secret
  uint64_t machine;                // where that is
  uint64_t network;
  uint32_t number;  // among the ids of the process
  uint32_t user;    // of the process
  unsigned char unused[40];
};
static_assert(sizeof(Id) == sizeof(ncclUniqueId), "the id fills NCCL's 128 bytes");

// The rank in the Hello of a caller that cannot be one of the ranks and connects to report why.
constexpr uint32_t kNoRank = UINT32_MAX;

// The request in the hello of a rank (greeting.h).
struct Hello {
  uint32_t magic;
  uint32_t number;  // of the id
  uint32_t rank;
  uint32_t nranks;
};

// Precedes each message. `result` is one of those below, or an error (ncclResult_t) whose text follows.
struct Frame {
  uint32_t size;
  uint32_t result;
};

// Sent by a rank that is done. A rank that disconnects without it has died or failed.
constexpr uint32_t kGoodbye = UINT32_MAX;
// The listener's first frame to a rank that has proved itself. It drops connections without an answer when it has too many.
constexpr uint32_t kAdmitted = UINT32_MAX - 1;

// True if collc made this id.
bool is_our_id(const ncclUniqueId &id);

Id unpack(const ncclUniqueId &id);

// The secret as 32 hex digits; only the ranks of this communicator know it.
std::string secret_of(const ncclUniqueId &id);

// Takes constant time, so that timing does not reveal where they differ.
bool equal_secrets(const void *one, const void *other, size_t size);

std::string hex_of(const unsigned char *data, size_t size);

}  // namespace collc
