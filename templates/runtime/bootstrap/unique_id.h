// The contents of collc's ncclUniqueId, and the messages between ranks and listener.
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
  // Where other servers reach the listener, in network byte order. Family 0: nowhere.
  uint16_t port;
  uint16_t family;  // AF_INET or AF_INET6
  uint32_t scope;
  unsigned char address[16];
  unsigned char secret[kSecretBytes];
  unsigned char name[kNameBytes];  // of the listener's local socket; not secret
  uint64_t machine;                // where the local socket is
  uint64_t network;
  uint32_t number;  // number of the id in its process
  uint32_t user;    // user of the process
  unsigned char unused[40];
};
static_assert(sizeof(Id) == sizeof(ncclUniqueId), "the id fills NCCL's 128 bytes");

// The rank in the Hello of a caller that cannot be a rank of the communicator and connects to report why.
constexpr uint32_t kNoRank = UINT32_MAX;

// The request in the hello of a rank (greeting.h).
struct Hello {
  uint32_t magic;
  uint32_t number;  // of the id
  uint32_t rank;
  uint32_t nranks;
};

// Header of each message. `result` is 0 (a message), one of the constants below, or an error (ncclResult_t) whose text
// follows.
struct Frame {
  uint32_t size;
  uint32_t result;
};

// The last frame of a rank that has finished the rendezvous. A rank that disconnects without it has died or failed.
constexpr uint32_t kGoodbye = UINT32_MAX;
// The listener's first frame to a rank that has proved that it knows the secret. If the listener has too many connections, it
// closes some without an answer.
constexpr uint32_t kAdmitted = UINT32_MAX - 1;

// Returns whether collc made this id.
bool is_our_id(const ncclUniqueId &id);

Id unpack(const ncclUniqueId &id);

// Returns the secret as 32 hex digits. Only the ranks of this communicator know it.
std::string secret_of(const ncclUniqueId &id);

// Compares in constant time, so that timing does not reveal where two secrets differ.
bool equal_secrets(const void *one, const void *other, size_t size);

std::string hex_of(const unsigned char *data, size_t size);

}  // namespace collc
