// All_gathers and broadcasts by copy engines between ranks that decide apart: in several processes, or in threads of one.
//
// The GPU of each rank copies a piece of its data into a slot of its own memory, from where the GPUs of the others copy it into
// their outputs. So no rank needs to know the buffers of another one, of whatever memory they are, and all ranks use copy engines
// for a call or none does: that depends on its size alone. Streams wait for words in pinned host memory (copy_words.h), which other
// streams write behind their copies. No GPU writes into the memory of another one, so nothing has to be flushed there: a write
// of a word is a memory barrier for what was before it on its stream.
//
// Of each rank, steps are in one order: piece by piece, filling before reading. A wait is for what comes earlier in that order on
// another rank, so the steps of all ranks never wait for each other in a circle, however far one is ahead.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "cuda/copy_words.h"
#include "cuda/device.h"
#include "plan/call.h"

namespace collc::cuda {

// What each rank hands on to the others of a broadcast of so many bytes.
struct BroadcastPart {
  BroadcastPart(uint64_t whole, uint64_t nranks, uint64_t part) {
    const uint64_t size = (whole / nranks / kAlignment + 1) * kAlignment;
    at = std::min(whole, part * size);
    bytes = std::min(whole, at + size) - at;
  }
  static constexpr uint64_t kAlignment = 128;
  uint64_t at, bytes;
};

class StagedCopies {
 public:
  static constexpr uint64_t kMostPiece = 16 << 20;  // bytes of a slot

  // `words`: CopyWords, for the host and for the GPU of the rank. `staging`: the slots of all ranks, for the GPU.
  StagedCopies(const Device *device, uint32_t rank, char *words, Address words_at, std::vector<Address> staging,
               uint64_t piece);
  ~StagedCopies();
  StagedCopies(const StagedCopies &) = delete;
  StagedCopies &operator=(const StagedCopies &) = delete;
  // Before any rank uses it.
  Status begin();

  // Of the rank's own: copies between GPUs on the legacy stream wait for all work of both GPUs, which may wait for them.
  Stream stream() const { return stream_; }
  uint64_t pieces(const Call &call) const;
  // Puts a piece of a call on a stream.
  Status put_piece(const Call &call, uint64_t number, Stream stream);

  // Of the watcher. Streams wait for nobody from now on.
  void release();
  // For whom the stream has waited so long, in words; empty: for nobody.
  std::string find_late(int64_t now_ms, double seconds);

 private:
  enum class Which : uint32_t { kAll = 1, kOne, kOthers };
  // Other ranks: all, one, or all but one.
  struct Peers {
    Which which;
    uint32_t rank = 0;
  };
  class Steps;
  std::vector<uint32_t> list(const Peers &peers) const;
  CopyWord &word(CopyStep step, uint32_t slot, uint32_t peer) const;
  void put_all_gather(const Call &call, uint64_t at, Steps *steps) const;
  void put_broadcast(const Call &call, uint64_t at, Steps *steps) const;

  const Device *device_;
  uint32_t rank_, nranks_;
  CopyWords layout_;
  char *words_;
  Address words_at_;
  std::vector<Address> staging_;
  uint64_t piece_;
  Stream stream_ = nullptr;
  bool released_ = false;  // of the watcher
  int64_t seen_ms_ = 0;  // likewise: when it saw first what the stream waits for
};

}  // namespace collc::cuda
