// The buffers of ncclMemAlloc and ncclCommRegister that other ranks read in place, as one rank uses them: which of its buffers
// a call exports, and which connectors carry addresses instead of chunks (lending.h, loans.h).
//
// Owner: CudaRank. Threads: one thread at a time, which creates the communicator, calls, registers or ends. offer_buffer()
// blocks as long as its caller allows, withdraw_buffer() for about 2 s at most.
#pragma once
#include <cstdint>
#include <memory>

#include "cuda/call_order.h"
#include "cuda/kernel_memory.h"
#include "cuda/lending.h"
#include "cuda/loans.h"
#include "cuda/world.h"
#include "executor/backend.h"

namespace collc::cuda {

class RegisteredBuffers final : public BufferRegistry {
 public:
  // `order`: of the rank's calls, which read the buffers.
  RegisteredBuffers(const RankContext &context, const CallOrder &order) : context_(context), order_(order) {}

  // Reads COLLC_DIRECT and COLLC_DIRECT_PROCESSES.
  Status read_settings() { return read_lending(&settings_); }
  // Opens the socket where this rank hears of exported buffers, and writes its name into `memory`. Must come before the ranks
  // exchange that. Without a socket, everything between processes passes through slots.
  void listen(const Device *device, RankMemory *memory);
  // Marks the connectors that carry addresses. Must come after World::set_peers().
  void mark(const World &world, Connectors *connectors);
  // Begins to export buffers to other processes. `gives_up`: not 0 once the kernels of this rank end without being done.
  void begin(const World &world, const volatile uint32_t *gives_up);

  // Returns true if the process runs the kernels of direct.h in place of Simple's.
  bool runs_direct() const { return runs_direct_; }
  // Returns what a call exports to kernels of other ranks (RankCall::factor). `first` and `room`: the part of the launch's
  // words for this rank.
  uint64_t lend(const Call &call, uint64_t *words, uint32_t first, uint32_t room);

  void offer_buffer(const void *memory, uint64_t bytes, double seconds) override;
  void register_buffer(const void *memory, uint64_t bytes) override;
  void withdraw_buffer(const void *memory) override;

  // Ends all exports, after the last call. `frees` takes what this rank has mapped.
  void close(DeferredFrees *frees);

 private:
  bool has_readers_abroad() const { return loans_ != nullptr && loans_->readers() != 0; }
  void log_peers(const World &world) const;

  const RankContext &context_;
  const CallOrder &order_;
  const Device *device_ = nullptr;
  Lending settings_;
  bool runs_direct_ = false;
  std::shared_ptr<Loans> loans_;  // null: nothing passes between processes in place
};

}  // namespace collc::cuda
