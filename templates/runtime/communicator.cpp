#include "communicator.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "environment.h"
#include "exchange_fd.h"

namespace collc {
namespace {

// What every rank tells the others first.
struct Introduction {
  uint64_t build;
  uint64_t process;  // random: process ids repeat between containers
  uint64_t machine;
  uint64_t gpus;  // hash of COLLC_GPUS
  uint64_t cpus[16];
};

uint64_t hash_of(const std::string &text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t this_machine() {
  char text[64] = "";
  if (std::FILE *file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
  return hash_of(text);
}

Status introduce(Introduction *mine, const std::vector<std::string> &gpus) {
  static std::mutex mutex;
  static uint64_t process;
  static int process_id = 0;
  std::memset(mine, 0, sizeof *mine);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    // A forked child is another process.
    if (process_id != getpid()) COLLC_RETURN_IF_FAILED(random_bytes(&process, sizeof process));
    process_id = getpid();
    mine->process = process;
  }
  mine->build = build_fingerprint();
  mine->machine = this_machine();
  std::string names;
  for (const std::string &gpu : gpus) names += gpu + ",";
  mine->gpus = hash_of(names);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) std::memcpy(mine->cpus, &cpus, std::min(sizeof cpus, sizeof mine->cpus));
  return {};
}

// Ranks that do not fit together are told so, in the same words everywhere.
Status compare(const std::vector<Introduction> &all) {
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].build != all[0].build)
      return fail(ncclInvalidUsage, "ranks 0 and %zu load different builds of the library", r);
    if (all[r].machine != all[0].machine)
      return fail(ncclInvalidUsage, "ranks 0 and %zu are on different machines; this library serves one machine", r);
    if (all[r].gpus != all[0].gpus) return fail(ncclInvalidUsage, "ranks 0 and %zu have different COLLC_GPUS", r);
  }
  return {};
}

uint32_t count_cores(const std::vector<Introduction> &all) {
  uint32_t cores = 0;
  for (size_t word = 0; word < std::size(all[0].cpus); ++word) {
    uint64_t together = 0;
    for (const Introduction &one : all) together |= one.cpus[word];
    cores += static_cast<uint32_t>(__builtin_popcountll(together));
  }
  return std::max(cores, 1u);
}

// A segment that several ranks of this process are about to share.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  Status status;
  std::shared_ptr<Segment> segment;

  void set(const Status &outcome, std::shared_ptr<Segment> made) {
    const std::lock_guard<std::mutex> lock(mutex);
    ready = true;
    status = outcome;
    segment = std::move(made);
    changed.notify_all();
  }
};

std::mutex pending_mutex;
std::map<std::string, std::shared_ptr<Pending>> &pending() {
  static auto *const all = new std::map<std::string, std::shared_ptr<Pending>>;  // outlives every thread
  return *all;
}

// The entry of a key; `first` tells whether the caller made it and has to fill it.
std::shared_ptr<Pending> claim(const std::string &key, bool *first) {
  const std::lock_guard<std::mutex> lock(pending_mutex);
  std::shared_ptr<Pending> &entry = pending()[key];
  *first = entry == nullptr;
  if (*first) entry = std::make_shared<Pending>();
  return entry;
}

void forget(const std::string &key) {
  const std::lock_guard<std::mutex> lock(pending_mutex);
  pending().erase(key);
}

Bytes bytes_of(const std::string &text) { return Bytes(text.begin(), text.end()); }

}  // namespace

Communicator::~Communicator() {
  join();
  rank_backend_.reset();
  if (segment_ != nullptr) segment_->leave(rank_);
}

void Communicator::join() {
  if (thread_.joinable()) thread_.join();
}

Status Communicator::initialise(const ncclUniqueId &id, int device) {
  Status status = make(id, device);
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  return status;
}

void Communicator::initialise_in_background(const ncclUniqueId &id, int device) {
  // Signals of the application are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, id, device] { report(initialise(id, device)); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Status Communicator::make(const ncclUniqueId &id, int device) {
  const int64_t start = now_ms();
  device_ = device;
  COLLC_RETURN_IF_FAILED(backend().use_device(device));
  double timeout = 0;
  COLLC_RETURN_IF_FAILED(read_number("COLLC_TIMEOUT", 0, 1e9, 0, &timeout));
  RankContext context;
  context.tables = &tables();
  context.nranks = nranks_;
  context.rank = rank_;
  context.timeout = timeout;
  context.stopped = [this] { return stopped_.load(); };

  Rendezvous rendezvous(context.stopped);
  COLLC_RETURN_IF_FAILED(rendezvous.join(id, nranks_, rank_));
  context.exchange = [&rendezvous](const Bytes &message, std::vector<Bytes> *all) {
    return rendezvous.exchange(message, all);
  };

  const std::vector<std::string> gpus = declared_gpus();
  Introduction mine;
  Status status = introduce(&mine, gpus);
  Bytes message(sizeof mine);
  std::memcpy(message.data(), &mine, sizeof mine);
  std::vector<Bytes> all;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(message, &all, status));
  std::vector<Introduction> introductions(nranks_);
  std::set<uint64_t> processes;
  for (uint32_t r = 0; r < nranks_; ++r) {
    if (all[r].size() != sizeof mine) return fail(ncclInvalidUsage, "rank %u loads another version of collc", r);
    std::memcpy(&introductions[r], all[r].data(), sizeof mine);
    processes.insert(introductions[r].process);
  }
  COLLC_RETURN_IF_FAILED(compare(introductions));
  COLLC_RETURN_IF_FAILED(place(nranks_, gpus, &placement_));
  cores_ = count_cores(introductions);
  processes_ = static_cast<uint32_t>(processes.size());

  if (nranks_ > 1) {
    const std::string key = secret_of(id);
    status = share_memory(rendezvous, key, backend().shared_bytes(*context.tables, *placement_.allocation));
    const Status together = rendezvous.exchange({}, &all, status);  // nobody goes on before all have mapped it
    forget(key);
    COLLC_RETURN_IF_FAILED(together);
  }
  context.placement = placement_;
  context.segment = segment_;
  context.cores = cores_;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange({}, &all, backend().open(context, &rank_backend_)));
  log(LogLevel::kInfo, "rank %u of %u: communicator made in %lld ms: %u processes, %u cores, %.1f MB shared", rank_, nranks_,
      static_cast<long long>(now_ms() - start), processes_, cores_,
      nranks_ > 1 ? static_cast<double>(segment_->control().bytes) / 1e6 : 0.0);
  return {};
}

Status Communicator::share_memory(Rendezvous &rendezvous, const std::string &key, uint64_t bytes) {
  std::shared_ptr<Segment> segment;
  std::vector<Bytes> all;
  const std::function<bool()> stop = [this, &rendezvous] { return stopped_.load() || !rendezvous.connected(); };
  bool first = false;
  if (rank_ == 0) {
    FdServer server;
    unsigned char random[16] = {};
    Status status = random_bytes(random, sizeof random);
    std::string name = "collc-";
    for (const unsigned char byte : random) name += format("%02x", byte);
    if (status.ok()) status = Segment::create(nranks_, bytes, &segment);
    if (status.ok()) status = server.listen(name);
    claim(key, &first)->set(status, segment);
    COLLC_RETURN_IF_FAILED(rendezvous.exchange(bytes_of(name), &all, status));
    COLLC_RETURN_IF_FAILED(server.serve(segment->fd(), key, processes_ - 1, stop));
  } else {
    COLLC_RETURN_IF_FAILED(rendezvous.exchange({}, &all));
    const std::shared_ptr<Pending> entry = claim(key, &first);
    if (first) {
      int fd = -1;
      Status status = fetch_fd(std::string(all[0].begin(), all[0].end()), key, stop, &fd);
      if (status.ok()) status = Segment::adopt(fd, nranks_, bytes, &segment);
      entry->set(status, segment);
    }
    std::unique_lock<std::mutex> lock(entry->mutex);
    while (!entry->ready && !stop()) entry->changed.wait_for(lock, std::chrono::milliseconds(50));
    if (!entry->ready) return fail(ncclRemoteError, "a rank left while memory was shared");
    COLLC_RETURN_IF_FAILED(entry->status);
    segment = entry->segment;
  }
  COLLC_RETURN_IF_FAILED(segment->attach(rank_));
  const std::lock_guard<std::mutex> lock(mutex_);
  segment_ = std::move(segment);
  return {};
}

Status Communicator::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok() && segment_ != nullptr && segment_->aborted()) return segment_->abort_status(rank_);
  return status_;
}

Status Communicator::prepare(Call *call) {
  COLLC_RETURN_IF_FAILED(state());
  const uint64_t size = element_bytes(call->type);
  const uint32_t root = call->root >= 0 ? placement_.plan_rank[static_cast<uint32_t>(call->root)] : 0;
  call->program = nullptr;
  if (nranks_ > 1) {
    call->program = choose_program(*placement_.allocation, call->collective, call->root < 0 ? -1 : static_cast<int>(root),
                                   call->count * size);
    if (call->program == nullptr)
      return fail(ncclInvalidUsage, "this library was compiled without %s%s", name_of(call->collective),
                  call->root < 0 ? "" : format(" from rank %d", call->root).c_str());
  }
  call->number = ++calls_;
  uint64_t signature = 0x9e3779b97f4a7c15 * call->number;
  const uint64_t parts[] = {call->count, static_cast<uint64_t>(call->collective), static_cast<uint64_t>(call->type),
                            static_cast<uint64_t>(call->op.kind) + (call->op.average ? 16 : 0) + (call->op.scaled ? 32 : 0),
                            static_cast<uint64_t>(call->root + 1)};
  for (const uint64_t part : parts) {
    signature ^= part + 0x9e3779b97f4a7c15 + (signature << 6) + (signature >> 2);
    signature *= 0xff51afd7ed558ccd;
    signature ^= signature >> 32;
  }
  call->signature = signature;
  return {};
}

void Communicator::set_failed(const Status &status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = status;
}

void Communicator::abort() {
  stopped_.store(true);
  std::shared_ptr<Segment> segment;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    segment = segment_;
    status_ = fail(ncclInvalidUsage, "the communicator was aborted");
  }
  if (segment != nullptr) segment->abort(fail(ncclRemoteError, "ncclCommAbort was called"), rank_);
}

}  // namespace collc
