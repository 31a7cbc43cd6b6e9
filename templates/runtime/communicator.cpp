#include "communicator.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "element.h"
#include "environment.h"
#include "exchange_fd.h"
#include "introduction.h"
#include "real_nccl.h"
#include "rendezvous.h"

namespace collc {
namespace {

// Spreads a number over all bits; no two numbers become the same.
uint64_t mix(uint64_t number) {
  number ^= number >> 32;
  number *= 0x9e3779b97f4a7c15;
  return number ^ number >> 29;
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

ncclConfig_t *Config::for_real() const {
  return raw.empty() ? nullptr : reinterpret_cast<ncclConfig_t *>(const_cast<unsigned char *>(raw.data()));
}

Status read_config(const ncclConfig_t *given, Config *config) {
  if (given == nullptr) return {};
  if (given->magic != NCCL_CONFIG_MAGIC)
    return fail(ncclInvalidArgument, "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
  const size_t size = given->size;
  if (size < offsetof(ncclConfig_t, cgaClusterSize) || size > 4096)
    return fail(ncclInvalidArgument, "the configuration says that it has %zu bytes", size);
  const auto *raw = reinterpret_cast<const unsigned char *>(given);
  config->raw.assign(raw, raw + size);
  // Fields newer than the caller's version keep their defaults.
  ncclConfig_t known = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&known, given, std::min(size, sizeof known));
  if (known.blocking != NCCL_CONFIG_UNDEF_INT && known.blocking != 0 && known.blocking != 1)
    return fail(ncclInvalidArgument, "blocking is %d, not 0 or 1", known.blocking);
  config->blocking = known.blocking != 0;
  const bool least_given = known.minCTAs != NCCL_CONFIG_UNDEF_INT, most_given = known.maxCTAs != NCCL_CONFIG_UNDEF_INT;
  if ((least_given && known.minCTAs <= 0) || (most_given && known.maxCTAs <= 0) ||
      (least_given && most_given && known.minCTAs > known.maxCTAs))
    return fail(ncclInvalidArgument, "minCTAs %d and maxCTAs %d do not fit together", known.minCTAs, known.maxCTAs);
  config->most_channels = most_given ? static_cast<uint32_t>(known.maxCTAs) : 0;
  return {};
}

Communicator::~Communicator() {
  wait_until_made();
  rank_backend_.reset();
  if (segment_ != nullptr) segment_->leave(rank_);
}

void Communicator::wait_until_made() {
  if (thread_.joinable()) thread_.join();
}

Status Communicator::initialise(const Origin &origin) {
  Status status = backend().use_device(device_);
  if (status.ok()) status = origin(this);
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  sound_.store(status.ok() && real_ == nullptr && !absent_ && !stopped_.load(), std::memory_order_release);
  return status;
}

void Communicator::initialise_in_background(const Origin &origin) {
  // Signals of the application are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, origin] { report(initialise(origin)); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Status Communicator::join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const std::vector<uint32_t> &gpus) {
  const int64_t start = now_ms();
  nranks_ = nranks;
  rank_ = rank;
  RankContext context;
  // A wrong value is told to the others at the first exchange: who did not come would let them wait.
  Status status = bootstrap_seconds(&bootstrap_seconds_);
  const Status limit = read_number("COLLC_TIMEOUT", 0, 1e9, 0, &context.timeout);
  if (status.ok()) status = limit;
  const Status whole = check_tables();
  if (status.ok()) status = whole;
  context.tables = &tables();
  context.nranks = nranks_;
  context.rank = rank_;
  context.most_channels = config_.most_channels;
  context.stopped = [this] { return stopped_.load(); };

  Rendezvous rendezvous(context.stopped);
  COLLC_RETURN_IF_FAILED(rendezvous.join(id, nranks_, rank_, bootstrap_seconds_));
  context.exchange = [&rendezvous](const Bytes &message, std::vector<Bytes> *all) {
    return rendezvous.exchange(message, all);
  };

  gpus_ = gpus;
  Introduction mine = {};
  if (status.ok() && gpus.empty()) status = declared_gpus(nranks_, &gpus_);
  const Tuning tuning = whole.ok() ? find_tuning(rank_ == 0) : Tuning();
  if (status.ok()) status = introduce(&mine, gpus_, tuning);
  Bytes message(sizeof mine);
  std::memcpy(message.data(), &mine, sizeof mine);
  std::vector<Bytes> all;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(message, &all, status));
  std::vector<Introduction> introductions(nranks_);
  std::vector<uint64_t> owners(nranks_);
  for (uint32_t r = 0; r < nranks_; ++r) {
    if (all[r].size() != sizeof mine) return fail(ncclInvalidUsage, "rank %u loads another version of collc", r);
    std::memcpy(&introductions[r], all[r].data(), sizeof mine);
    owners[r] = introductions[r].process;
  }
  COLLC_RETURN_IF_FAILED(compare_builds(introductions));
  // All ranks know the same facts, so all come to the same decision.
  status = compare_disabled(introductions);
  if (status.ok()) status = compare_places(introductions);
  if (status.ok()) status = place(nranks_, gpus_, &placement_);
  if (!status.ok()) return hand_over(rendezvous, status);
  COLLC_RETURN_IF_FAILED(check_gpus(nranks_, gpus_));
  COLLC_RETURN_IF_FAILED(compare_tunings(introductions));
  if (placement_.allocation != nullptr) choices_ = Choices(*placement_.allocation, tuning);

  const std::string key = secret_of(id);
  status = share_memory(rendezvous, key, owners);
  const Status together = rendezvous.exchange({}, &all, status);  // nobody goes on before all have mapped it
  forget(key);
  COLLC_RETURN_IF_FAILED(together);
  context.placement = placement_;
  context.segment = segment_;
  context.cores = count_cores(introductions);
  COLLC_RETURN_IF_FAILED(rendezvous.exchange({}, &all, backend().open(context, &rank_backend_)));
  rendezvous.leave();
  log(LogLevel::kInfo, "rank %u of %u: communicator made in %lld ms: %zu processes, %u cores, %.1f MB shared", rank_, nranks_,
      static_cast<long long>(now_ms() - start), std::set<uint64_t>(owners.begin(), owners.end()).size(), context.cores,
      static_cast<double>(segment_->control().bytes) / 1e6);
  return {};
}

Status Communicator::hand_over(Rendezvous &rendezvous, const Status &reason) {
  ncclUniqueId id = {};
  Status ready;
  if (!have_real()) {
    ready = fail(reason.code(), "%s, and %s", reason.text().c_str(), describe_real().c_str());
  } else if (rank_ == 0) {
    const ncclResult_t made = call_real(pncclGetUniqueId, "ncclGetUniqueId", &id);
    if (made != ncclSuccess) ready = fail(made, "%s, and the real NCCL failed: %s", reason.text().c_str(), last_error());
  }
  Bytes message(sizeof id);
  std::memcpy(message.data(), &id, sizeof id);
  std::vector<Bytes> all;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(message, &all, ready));
  rendezvous.leave();
  std::memcpy(&id, all[0].data(), std::min(sizeof id, all[0].size()));
  static std::atomic<bool> said{false};
  if (rank_ == 0 && !said.exchange(true))
    std::fprintf(stderr, "collc: %s: %s takes this communicator\n", reason.text().c_str(), describe_real().c_str());
  ncclComm_t made = nullptr;
  const ncclResult_t result =
      config_.raw.empty()
          ? call_real(pncclCommInitRank, "ncclCommInitRank", &made, static_cast<int>(nranks_), id, static_cast<int>(rank_))
          : call_real(pncclCommInitRankConfig, "ncclCommInitRankConfig", &made, static_cast<int>(nranks_), id,
                      static_cast<int>(rank_), config_.for_real());
  if (result != ncclSuccess && result != ncclInProgress)
    return fail(result, "the real NCCL (%s) could not make the communicator", describe_real().c_str());
  wrap(made, nranks_, rank_);
  return {};
}

void Communicator::wrap(ncclComm_t real, uint32_t nranks, uint32_t rank) {
  nranks_ = nranks;
  rank_ = rank;
  const std::lock_guard<std::mutex> lock(mutex_);
  real_ = real;
}

ncclComm_t Communicator::release_real() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ncclComm_t real = real_.exchange(nullptr);
  sound_.store(false, std::memory_order_release);
  status_ = fail(ncclInvalidUsage, "the communicator was destroyed");
  return real;
}

Status Communicator::share_memory(Rendezvous &rendezvous, const std::string &key, const std::vector<uint64_t> &owners) {
  const Segment::Size size{nranks_, backend().most_ahead(), backend().shared_bytes(tables(), placement_)};
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
    if (status.ok()) status = Segment::create(size, &segment);
    if (status.ok()) status = server.listen(name);
    claim(key, &first)->set(status, segment);
    COLLC_RETURN_IF_FAILED(rendezvous.exchange(bytes_of(name), &all, status));
    status = server.serve(segment->fd(), key, owners, rank_, rendezvous.seconds(), stop);
    segment->hide();
    if (!status.ok()) return stop() ? rendezvous.verdict() : status;
  } else {
    COLLC_RETURN_IF_FAILED(rendezvous.exchange({}, &all));
    const std::shared_ptr<Pending> entry = claim(key, &first);
    if (first) {
      int fd = -1;
      Status status =
          fetch_fd(std::string(all[0].begin(), all[0].end()), key, rank_, rendezvous.seconds(), stop, &fd);
      if (!status.ok() && stop()) status = rendezvous.verdict();
      if (status.ok()) status = Segment::adopt(fd, size, &segment);
      entry->set(status, segment);
    }
    std::unique_lock<std::mutex> lock(entry->mutex);
    while (!entry->ready && !stop()) entry->changed.wait_for(lock, std::chrono::milliseconds(50));
    if (!entry->ready) return rendezvous.verdict();
    COLLC_RETURN_IF_FAILED(entry->status);
    segment = entry->segment;
  }
  COLLC_RETURN_IF_FAILED(segment->attach(rank_));
  const std::lock_guard<std::mutex> lock(mutex_);
  segment_ = std::move(segment);
  return {};
}

Status Communicator::look() const {
  ncclComm_t real = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return status_;
    if (segment_ != nullptr && segment_->aborted()) return segment_->abort_status(rank_);
    real = real_;
  }
  if (real == nullptr) return {};
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = call_real(pncclCommGetAsyncError, "ncclCommGetAsyncError", real, &result);
  if (asked != ncclSuccess) result = asked;
  return result == ncclSuccess ? Status() : Status(result, "the real NCCL reports an error");
}

const Program *Communicator::choose(Collective collective, int root, uint64_t bytes) const {
  return choices_.find(collective, root < 0 ? -1 : static_cast<int>(placement_.plan_rank[static_cast<uint32_t>(root)]), bytes);
}

bool Communicator::force(uint32_t number) {
  const Allocation *mine = placement_.allocation;
  if (mine == nullptr || number < mine->first_program || number - mine->first_program >= mine->nprograms) return false;
  choices_.force(tables().programs[number]);
  return true;
}

Status Communicator::prepare(Call *call) {
  COLLC_RETURN_IF_FAILED(state());
  call->program = nullptr;
  if (call->work == Work::kProgram && nranks_ > 1) {
    call->program = choose(call->collective, call->root, call->count * element_bytes(call->type));
    if (call->program == nullptr)
      return fail(ncclInvalidUsage, "this library was compiled without %s%s", name_of(call->collective),
                  call->root < 0 ? "" : format(" from rank %d", call->root).c_str());
  }
  return {};
}

void Communicator::count(Call *call) {
  if (call->collective == Collective::kSendRecv) {
    const bool receives = call->work == Work::kReceive;
    call->number = 0;
    call->what = pack_transfer(receives, call->type, static_cast<int>(call->peer));
    call->signature = sign_transfer(call->type, call->count);
    return;
  }
  const uint64_t operation = static_cast<uint64_t>(call->op.kind) + (call->op.average ? kAverage : 0) + (call->op.scaled ? kScaled : 0);
  call->what = pack_call(call->collective, call->type, operation, call->root);
  if (!call->continues) {
    ++calls_;
    history_ = mix(mix(history_ ^ mix(call->count)) ^ call->what);
  }
  call->number = calls_;
  call->signature = call->work == Work::kProgram ? history_ : sign_exchange(history_);
}

Status Communicator::add_scaling(const void *scalar, ncclDataType_t type, bool immediate, ncclRedOp_t *handle) {
  Scaling scaling = {};
  scaling.used = true;
  scaling.immediate = immediate;
  scaling.type = type;
  scaling.address = scalar;
  if (immediate) std::memcpy(scaling.value, scalar, element_bytes(type));
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t at = 0;
  while (at < scalings_.size() && scalings_[at].used) ++at;
  if (at == scalings_.size()) scalings_.emplace_back();
  scalings_[at] = scaling;
  *handle = static_cast<ncclRedOp_t>(ncclNumOps + at);
  return {};
}

Status Communicator::remove_scaling(ncclRedOp_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t at = static_cast<size_t>(handle) - ncclNumOps;
  if (handle < ncclNumOps || at >= scalings_.size() || !scalings_[at].used)
    return fail(ncclInvalidArgument, "reduction %d does not exist", static_cast<int>(handle));
  scalings_[at].used = false;
  return {};
}

Status Communicator::find_scaling(ncclRedOp_t handle, ncclDataType_t type, Operation *operation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t at = static_cast<size_t>(handle) - ncclNumOps;
  if (handle < ncclNumOps || at >= scalings_.size() || !scalings_[at].used)
    return fail(ncclInvalidArgument, "reduction %d does not exist", static_cast<int>(handle));
  const Scaling &scaling = scalings_[at];
  if (scaling.type != type)
    return fail(ncclInvalidArgument, "reduction %d was made for type %d, not %d", static_cast<int>(handle),
                static_cast<int>(scaling.type), static_cast<int>(type));
  operation->kind = ncclSum;
  operation->scaled = true;
  std::memcpy(operation->scale, scaling.immediate ? scaling.value : scaling.address, element_bytes(type));
  return {};
}

Status Communicator::correspond(const std::vector<uint32_t> &members, const Bytes &message, std::vector<Bytes> *answers) {
  Mail &mine = segment_->line(rank_).mail;
  const uint64_t number = mine.number.load(std::memory_order_relaxed) + 1;
  std::memcpy(mine.data[number % 2], message.data(), std::min(message.size(), Mail::kBytes));
  mine.number.store(number, std::memory_order_release);
  answers->clear();
  const int64_t start = now_ms();
  const double seconds = bootstrap_seconds_;
  for (const uint32_t member : members) {
    Mail &theirs = segment_->line(member).mail;
    for (long nap_us = 20; theirs.number.load(std::memory_order_acquire) < number; nap_us = std::min(2 * nap_us, 2000L)) {
      if (stopped_.load()) return fail(ncclInvalidUsage, "the communicator was aborted");
      if (!segment_->alive(member)) return fail(ncclRemoteError, "rank %u has died", member);
      if (static_cast<double>(now_ms() - start) > seconds * 1e3)
        return fail(ncclSystemError, "rank %u did not take part within %.0f s", member, seconds);
      std::this_thread::sleep_for(std::chrono::microseconds(nap_us));
    }
    const unsigned char *data = theirs.data[number % 2];
    answers->emplace_back(data, data + Mail::kBytes);
  }
  return {};
}

Status Communicator::part_of(Communicator &parent, const std::vector<uint32_t> &meeting,
                             const std::vector<uint32_t> &members) {
  ncclUniqueId id = {};
  Status status;
  if (!members.empty() && members[0] == parent.rank_) status = make_unique_id(&id);
  Bytes message(1 + sizeof id);
  message[0] = status.ok() ? 1 : 0;
  std::memcpy(message.data() + 1, &id, sizeof id);
  std::vector<Bytes> all;
  COLLC_RETURN_IF_FAILED(parent.correspond(meeting, message, &all));
  COLLC_RETURN_IF_FAILED(status);
  if (members.empty()) {
    absent_ = true;
    return {};
  }
  const auto first = std::find(meeting.begin(), meeting.end(), members[0]) - meeting.begin();
  const Bytes &from_first = all[static_cast<size_t>(first)];
  if (from_first[0] != 1) return fail(ncclRemoteError, "rank %u could not make an id", members[0]);
  std::memcpy(&id, from_first.data() + 1, sizeof id);
  const auto place_of_mine = std::find(members.begin(), members.end(), parent.rank_) - members.begin();
  std::vector<uint32_t> gpus;
  if (parent.gpus_.size() == parent.nranks_)
    for (const uint32_t member : members) gpus.push_back(parent.gpus_[member]);
  return join(id, static_cast<uint32_t>(members.size()), static_cast<uint32_t>(place_of_mine), gpus);
}

Status Communicator::split(Communicator &parent, int color, int key) {
  const int mine[2] = {color, key};
  Bytes message(sizeof mine);
  std::memcpy(message.data(), mine, sizeof mine);
  std::vector<uint32_t> everyone(parent.nranks_), members;
  for (uint32_t r = 0; r < parent.nranks_; ++r) everyone[r] = r;
  std::vector<Bytes> all;
  COLLC_RETURN_IF_FAILED(parent.correspond(everyone, message, &all));
  std::vector<std::pair<int, uint32_t>> order;
  for (uint32_t r = 0; r < parent.nranks_; ++r) {
    int theirs[2];
    std::memcpy(theirs, all[r].data(), sizeof theirs);
    if (color >= 0 && theirs[0] == color) order.emplace_back(theirs[1], r);
  }
  std::sort(order.begin(), order.end());
  for (const auto &entry : order) members.push_back(entry.second);
  return part_of(parent, everyone, members);
}

Status Communicator::shrink(Communicator &parent, const std::vector<uint32_t> &excluded) {
  std::vector<uint32_t> members;
  for (uint32_t r = 0; r < parent.nranks_; ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) members.push_back(r);
  return part_of(parent, members, members);
}

void Communicator::set_failed(const Status &status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sound_.store(false, std::memory_order_release);
  if (status_.ok()) status_ = status;
}

void Communicator::abort() {
  stopped_.store(true);
  std::shared_ptr<Segment> segment;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    segment = segment_;
    sound_.store(false, std::memory_order_release);
    status_ = fail(ncclInvalidUsage, "the communicator was aborted");
  }
  if (segment != nullptr) segment->abort(fail(ncclRemoteError, "ncclCommAbort was called"), rank_);
}

}  // namespace collc
