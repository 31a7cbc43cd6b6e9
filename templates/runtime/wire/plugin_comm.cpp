#include "wire/plugin_comm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <vector>

namespace collc {

void keep_for_ever(std::shared_ptr<const void> owner) {
  const ForeignTurn turn;
  static auto *const kept = new std::vector<std::shared_ptr<const void>>;
  for (const auto &one : *kept)
    if (one == owner) return;
  kept->push_back(std::move(owner));
}

Status OwnPages::make(size_t bytes, std::shared_ptr<OwnPages> *made) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes = (bytes + page - 1) / page * page;
  void *const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return fail_errno("engine plugin: no memory for heads", errno);
  made->reset(new OwnPages(static_cast<char *>(begin), bytes));
  return {};
}

OwnPages::~OwnPages() { munmap(begin_, bytes_); }

PluginComm::~PluginComm() {
  const ForeignTurn turn;
  if (outstanding_ > 0)
    for (auto &[begin, memory] : memory_) keep_for_ever(memory.owner);
  if (ForeignTurn::over()) return;
  for (auto &[begin, memory] : memory_) static_cast<void>(net_->check("deregMr", net_->table().release(comm_, memory.known)));
  static_cast<void>(sends_ ? net_->check("closeSend", net_->table().close_send(comm_))
                           : net_->check("closeRecv", net_->table().close_receive(comm_)));
}

Status PluginComm::enroll(char *memory, size_t bytes, std::shared_ptr<const void> owner, bool on_gpu) {
  void *known = nullptr;
  const int kind = on_gpu ? nccl_net::kGpuMemory : nccl_net::kHostMemory;
  COLLC_RETURN_IF_FAILED(net_->check("regMr", net_->table().enroll(comm_, memory, bytes, kind, &known)));
  memory_.emplace(memory, Memory{bytes, known, std::move(owner), on_gpu});
  return {};
}

void PluginComm::forget(char *memory) {
  const auto found = memory_.find(memory);
  if (found == memory_.end()) return;
  if (!ForeignTurn::over()) static_cast<void>(net_->table().release(comm_, found->second.known));
  memory_.erase(found);
}

const PluginComm::Memory *PluginComm::find(const char *data, size_t bytes) const {
  const auto next = memory_.upper_bound(const_cast<char *>(data));
  if (next == memory_.begin()) return nullptr;
  const auto &[begin, memory] = *std::prev(next);
  return data + bytes <= begin + memory.bytes ? &memory : nullptr;
}

bool PluginComm::is_on_gpu(const char *data) const {
  const Memory *const memory = find(data, 1);
  return memory != nullptr && memory->on_gpu;
}

Status PluginComm::post(char *data, size_t bytes, void **request) {
  *request = nullptr;
  const Memory *const memory = find(data, bytes);
  if (memory == nullptr) return fail(ncclInternalError, "a body lies in memory that no lane has");
  COLLC_RETURN_IF_FAILED(sends_ ? net_->send(comm_, data, bytes, memory->known, request)
                                : net_->receive(comm_, data, bytes, memory->known, request));
  if (*request != nullptr) ++outstanding_;
  return {};
}

Status PluginComm::flush(char *data, size_t bytes, void **request) {
  const Memory *const memory = find(data, bytes);
  if (memory == nullptr || !memory->on_gpu) return fail(ncclInternalError, "a flush of memory that is of no GPU");
  COLLC_RETURN_IF_FAILED(net_->flush(comm_, data, bytes, memory->known, request));
  if (*request != nullptr) ++outstanding_;
  return {};
}

Status PluginComm::test(void **request, size_t *bytes) {
  int done = 0, moved[nccl_net::kRequests] = {};
  COLLC_RETURN_IF_FAILED(net_->check("test", net_->table().test(*request, &done, moved)));
  if (done == 0) return {};
  net_->plugin().note_use("an end");
  *request = nullptr;
  *bytes = static_cast<size_t>(moved[0]);
  --outstanding_;
  return {};
}

}  // namespace collc
