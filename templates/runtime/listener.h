// Where the ranks of a communicator meet while it is made: a thread of the process that made the id. What goes over the
// wire is here too; rendezvous.h has a rank's side of it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rendezvous.h"

namespace collc {

constexpr size_t kSecretBytes = 16;
constexpr uint32_t kHelloMagic = 0x636c6c31;  // "cll1"
constexpr uint32_t kMostMessage = 1 << 20;
constexpr int64_t kHelloMs = 5000;  // a stranger who says nothing is dropped after this

// The content of an ncclUniqueId of ours.
struct Id {
  char magic[8];
  uint16_t port;    // network order
  uint16_t family;  // AF_INET or AF_INET6
  uint32_t scope;
  unsigned char address[16];
  unsigned char secret[kSecretBytes];
  unsigned char unused[80];
};
static_assert(sizeof(Id) == sizeof(ncclUniqueId), "the id fills NCCL's 128 bytes");

struct Hello {
  uint32_t magic;
  uint32_t rank;
  uint32_t nranks;
  uint32_t reserved;
  unsigned char secret[kSecretBytes];
};

// Precedes each message. `result` != 0 is an error whose text follows.
struct Frame {
  uint32_t size;
  uint32_t result;
};

// The `result` of a rank that is done: whoever goes without it has died or failed, and the others wait for it in vain.
constexpr uint32_t kGoodbye = UINT32_MAX;

void prepare_socket(int fd);

// The listener of one id.
class Listener {
 public:
  // `seconds` bound the wait for ranks that have not joined, then that for each round.
  Listener(int socket, const Id &id, double seconds)
      : socket_(socket), id_(id), limit_ms_(static_cast<int64_t>(seconds * 1000)) {}
  ~Listener();
  Listener(const Listener &) = delete;
  Listener &operator=(const Listener &) = delete;

  // Until every rank has left, or has been told why there will be no communicator.
  void serve();

 private:
  struct Peer {
    int fd = -1;
    int64_t since = 0;
    Bytes received;
    bool spoke = false;  // its message of this round is complete
    bool done = false;   // it said goodbye
    Frame frame = {};
    Bytes message;
  };

  // Someone who got his last answer. Closing at once, with words of his unread, would reset the connection and could
  // take the answer from him.
  struct Dismissed {
    int fd;
    int64_t since;
  };

  bool over() const;
  int timeout() const;
  void dismiss(int fd);
  void drain_dismissed();
  void accept_peers();
  void hear_strangers();
  void welcome(Peer &peer, const Hello &hello);
  void hear_ranks();
  bool round_begun() const;
  void finish_round();
  void look_at_the_clock();
  std::string missing() const;
  std::string silent() const;
  void fail_all(ncclResult_t code, const std::string &words);

  int socket_;
  Id id_;
  int64_t limit_ms_;
  uint32_t nranks_ = 0;   // 0: nobody has joined
  int64_t round_ms_ = 0;  // when the first rank joined, then when the last round ended
  uint64_t complete_ = 0;  // rounds
  std::vector<Peer> strangers_;
  std::vector<Dismissed> dismissed_;
  std::map<uint32_t, Peer> ranks_;
  // Why there will be no communicator; ncclSuccess: there may be one yet. Ranks that join later are told too.
  ncclResult_t failure_ = ncclSuccess;
  std::string words_;
  int64_t failed_ms_ = 0;
};

}  // namespace collc
