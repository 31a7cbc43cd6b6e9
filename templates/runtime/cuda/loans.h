// Buffers of ncclMemAlloc and ncclCommRegister that ranks of other processes read in place: the ranks that have a buffer
// mapped, and the address there.
//
// No call waits for the mapping. The first call that could export a buffer to ranks of other processes offers it to them, and
// passes through slots. A thread of the process (loan_desk.h) sends the offer with a file descriptor or an IPC handle. The
// readers map the buffer, and answer with its address. A later call writes addresses there. Each offer has a number that no
// other buffer of the process ever has, so a new buffer at the address of an old one counts as new. ncclMemFree and
// ncclCommDeregister tell the readers, which unmap the buffer; until then their mappings keep the memory. After an abort they
// keep the mappings until their communicator ends, because a kernel may still read there.
//
// Owner: RegisteredBuffers, together with the desk. Threads: the thread that makes calls, and the desk; a mutex guards what
// both use. No call waits for another process.
#pragma once
#include <poll.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/acceptor.h"
#include "bootstrap/exchange_fd.h"
#include "cuda/deferred_frees.h"
#include "cuda/device.h"
#include "executor/backend.h"

namespace collc::cuda {

// A buffer as other processes can map it.
struct LentBuffer {
  uint64_t number = 0;  // 0: they cannot
  Address begin = 0;
  size_t bytes = 0;
  std::shared_ptr<const ShareableMemory> memory;
  IpcHandle handle = {};  // without `memory`
};

// The buffers that one rank of a communicator has exported to ranks of other processes, and imported from them.
class Loans {
 public:
  struct Reader {
    uint32_t rank;  // NCCL's
    std::string socket;
  };

  // `name`: for other ranks, of the socket where this one listens.
  static Status listen(const RankContext &context, const Device *device, SocketName *name, std::shared_ptr<Loans> *made);
  Loans(const RankContext &context, const Device *device);
  // Once the others are known. `gives_up`: not 0 once kernels of this rank end without being done. `ring`: calls the desk.
  void begin(std::vector<Reader> readers, const volatile uint32_t *gives_up, void (*ring)());
  size_t readers() const { return links_.size(); }

  // How far from its address each reader has a buffer, or kNotThere: into every second word from `words` on. Offers it if new,
  // and one that was withdrawn again when all have given it back.
  void find(const LentBuffer &buffer, uint64_t *words);
  // Returns true if each reader of a buffer has answered its offer, or never will.
  bool is_answered(uint64_t number) const;
  // A buffer is freed or no longer registered, and no call uses it.
  void forget(uint64_t number);
  // Returns true if readers still have mapped buffers that were freed.
  bool awaits_returns() const;
  // The rank goes, when its calls have ended. `frees` takes what it has mapped.
  void close(DeferredFrees *frees);

  // Only the thread at the desk (loan_desk.h) calls the functions below.
  bool is_closed() const;
  // Sends what there is to tell; false if some of it has to wait.
  bool send();
  void add_to(std::vector<pollfd> *polled) const;
  void handle_events(const pollfd **at);
  int timeout() const { return acceptor_->timeout(); }

 private:
  enum class Kind : uint32_t { kOffer = 1, kHandle, kFreed, kMapped, kRefused, kReturned };
  struct Message {
    Kind kind;
    uint32_t reserved;
    uint64_t number;
    uint64_t bytes;
    uint64_t at;  // in the reader's process
    IpcHandle handle;  // of kHandle
  };
  // To a reader. `socket` and `lost` are the desk's; the rest is guarded.
  struct Link {
    Reader reader;
    Descriptor socket;
    std::unique_ptr<Greeting> greeting;  // until the reader has proved itself; null: it has
    std::deque<Message> unsent;
    bool lost = false;
  };
  // Memory of another process.
  struct Borrowed {
    VirtualMemory memory;
    bool by_handle = false;
  };
  // The connection from a writer.
  struct Borrowing {
    Descriptor socket;
    uint32_t rank;
  };
  struct Offer {
    LentBuffer buffer;
    std::vector<uint64_t> words;  // by reader
    std::set<size_t> asked;  // readers that have not answered
  };

  bool awaits_return(uint64_t number) const;
  bool connect(Link &link);
  bool greet(Link &link, Greeting::Step step);
  bool send_to(size_t reader);
  bool receive_answers(size_t reader);
  void take_answer(size_t reader, const Message &answer);
  void lose(size_t reader);
  bool receive_offers(Borrowing &from);
  bool take_offer(const Borrowing &from, const Message &offer, Descriptor file);
  void take_back(const Borrowing &from, uint64_t number);
  bool map(const Message &offer, const Descriptor &file, Borrowed *made) const;
  void unmap(const Borrowed &borrowed) const;

  const Device *device_;
  uint32_t rank_;
  std::string secret_;  // of the communicator
  uint32_t nranks_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<Borrowing> borrowings_;  // the desk's
  std::vector<Link> links_;  // does not change once it has begun
  void (*ring_)() = nullptr;  // likewise

  mutable std::mutex mutex_;  // guards the rest
  std::shared_ptr<Segment> segment_;
  const volatile uint32_t *gives_up_ = nullptr;
  bool closed_ = false;
  std::map<uint64_t, Offer> offers_;
  std::set<std::pair<size_t, uint64_t>> unreturned_;  // readers that may have mapped what was freed
  std::map<std::pair<uint32_t, uint64_t>, Borrowed> borrowed_;  // by the writer's rank and its number of the buffer
};

}  // namespace collc::cuda
