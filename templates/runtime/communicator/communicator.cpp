#include "communicator/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "base/element.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "communicator/real_nccl.h"
#include "control/last_calls.h"
#include "plan/embedded_tables.h"

namespace collc {
namespace {

// How long ncclCommFinalize waits for ranks that have not made its last call, without COLLC_TIMEOUT. By then ranks that are in
// another call have found that out: they look every 20 ms.
constexpr double kFinalizeSeconds = 5;

}  // namespace

ncclConfig_t *Config::for_real() {
  if (raw.empty()) return nullptr;
  const auto put = [this](size_t at, const std::string &text) {
    const char *const own = text.c_str();
    if (!text.empty() && raw.size() >= at + sizeof own) std::memcpy(raw.data() + at, &own, sizeof own);
  };
  put(offsetof(ncclConfig_t, netName), network);
  put(offsetof(ncclConfig_t, commName), name);
  return reinterpret_cast<ncclConfig_t *>(raw.data());
}

Status read_config(const ncclConfig_t *given, Config *config) {
  if (given == nullptr) return {};
  if (given->magic != NCCL_CONFIG_MAGIC)
    return fail(ncclInvalidArgument, "the configuration was not initialized with NCCL_CONFIG_INITIALIZER");
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
  const auto text = [](const char *at) { return at != nullptr && at != NCCL_CONFIG_UNDEF_PTR ? at : ""; };
  config->name = text(known.commName);
  config->network = text(known.netName);
  config->most_channels = most_given ? static_cast<uint32_t>(known.maxCTAs) : 0;
  return {};
}

Status Owner::refuse() {
  return fail(ncclInvalidUsage,
              "another thread is in a call of this communicator, which takes the calls of one thread at a time");
}

Communicator::~Communicator() {
  wait_until_made();
  rank_backend_.reset();
  if (control_ != nullptr) control_->leave(rank_);
}

void Communicator::wait_until_made() {
  if (thread_.joinable()) thread_.join();
}

Status Communicator::initialize(const Origin &origin) {
  Status status;
  try {
    status = backend().use_device(device_);
    if (status.ok())
      status = origin.make(this);
    else
      origin.decline(status);
  } catch (const std::bad_alloc &) {
    status = fail(ncclSystemError, "out of memory");
  } catch (const std::exception &error) {
    status = fail(ncclInternalError, "%s", error.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  sound_.store(status.ok() && real_ == nullptr && !absent_ && !stopped_.load(), std::memory_order_release);
  return status;
}

Status Communicator::initialize_in_background(const Origin &origin) {
  const Status status = start_thread([this, origin] { report(initialize(origin)); }, &thread_);
  if (status.ok()) return Status(ncclInProgress, "the communicator is being made");
  origin.decline(status);
  return status;
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

Status Communicator::look() const {
  ncclComm_t real = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return status_;
    if (control_ != nullptr && control_->aborted()) return control_->abort_status(rank_);
    real = real_;
  }
  if (real == nullptr) return finalized() ? look_at_end() : Status();
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = call_real(pncclCommGetAsyncError, "ncclCommGetAsyncError", real, &result);
  if (asked != ncclSuccess) result = asked;
  return result == ncclSuccess ? Status() : Status(result, "the real NCCL reports an error");
}

Status Communicator::look_at_end() const {
  const Status in_progress(ncclInProgress, "the communicator is being finalized");
  if (const AsyncCalls *const calls = async_calls(); calls != nullptr && calls->has_calls()) return in_progress;
  if (control_ == nullptr || has_compared_.load(std::memory_order_acquire)) return {};
  std::vector<uint32_t> late;
  Status status = compare_last_calls(*control_, rank_, &late);
  if (status.ok() && !late.empty()) {
    const double limit = timeout_ > 0 ? timeout_ : kFinalizeSeconds;
    if (static_cast<double>(now_ms() - finalized_ms_) < limit * 1e3) return in_progress;
    const std::string missing = describe_missing(*control_, rank_, control_->newest_call(rank_));
    if (timeout_ > 0)
      status = fail(ncclRemoteError, "COLLC_TIMEOUT: after %.1f s of ncclCommFinalize%s", limit, missing.c_str());
    else
      log(LogLevel::kWarn, "rank %u: ncclCommFinalize ends after %.1f s%s", rank_, limit, missing.c_str());
  }
  has_compared_.store(true, std::memory_order_release);
  if (status.ok()) return {};
  control_->abort(control_->with_differing_calls(status), rank_);
  return control_->abort_status(rank_);  // a rank that has left may have said why before
}

const Program *Communicator::choose(Collective collective, int root, uint64_t bytes, const Call *call,
                                    const Program **otherwise) const {
  const int plan_root = root < 0 ? -1 : static_cast<int>(placement_.plan_rank[static_cast<uint32_t>(root)]);
  const auto runs = [&](const Program &program) { return rank_backend_ == nullptr || rank_backend_->can_run(program, call); };
  if (otherwise != nullptr) return choices_.find(collective, plan_root, bytes, runs, otherwise);
  const Program *instead = nullptr, *const found = choices_.find(collective, plan_root, bytes, runs, &instead);
  // There is an alternative only after the chooser has adapted choices_.
  return instead != nullptr && rank_backend_ != nullptr ? &rank_backend_->chooser()->choose(*found, *instead, bytes) : found;
}

bool Communicator::force(uint32_t number) {
  const Allocation *mine = placement_.allocation;
  if (mine == nullptr || number < mine->first_program || number - mine->first_program >= mine->nprograms) return false;
  if (rank_backend_ != nullptr && !rank_backend_->can_run(tables().programs[number], nullptr)) return false;
  choices_.force(tables().programs[number]);
  return true;
}

Status Communicator::prepare(Call *call) {
  if (finalized()) return fail(ncclInvalidUsage, "the communicator was finalized");
  if (const Status broken = state(); !broken.ok()) {
    if (broken.code() != ncclInProgress) leave_record(broken);
    return broken;
  }
  call->program = call->alternative = nullptr;
  if (call->work == Work::kProgram && nranks_ > 1) {
    call->program = choose(call->collective, call->root, call->count * element_bytes(call->type), call, &call->alternative);
    if (call->program == nullptr)
      return fail(ncclInvalidUsage, "this library was compiled without %s%s", name_of(call->collective),
                  call->root < 0 ? "" : format(" from rank %d", call->root).c_str());
  }
  return {};
}

void Communicator::set_failed(const Status &status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sound_.store(false, std::memory_order_release);
    if (status_.ok()) status_ = status;
  }
  leave_record(status);
}

void Communicator::leave_record(const Status &why) {
  std::shared_ptr<FlightRecord> flight;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    flight = flight_;
  }
  if (flight != nullptr) flight->leave(why);
}

void Communicator::abort() {
  stopped_.store(true);
  std::shared_ptr<Control> control;
  std::shared_ptr<FlightRecord> flight;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    control = control_;
    flight = flight_;
    sound_.store(false, std::memory_order_release);
    status_ = fail(ncclInvalidUsage, "the communicator was aborted");
  }
  if (control == nullptr) return;
  if (flight != nullptr && flight->is_in_call()) flight->leave(fail(ncclRemoteError, "ncclCommAbort was called"));
  control->abort(fail(ncclRemoteError, "ncclCommAbort was called"), rank_);
}

Status Communicator::revoke() {
  std::shared_ptr<Control> control;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (revoked()) return fail(ncclInvalidArgument, "it was revoked before");
    control = control_;
    sound_.store(false, std::memory_order_release);
    status_ = fail(ncclInvalidUsage, "the communicator was revoked");
    revoked_.store(true, std::memory_order_release);
  }
  if (control != nullptr) control->abort(fail(ncclRemoteError, "ncclCommRevoke was called"), rank_);
  if (const AsyncCalls *const calls = async_calls(); calls != nullptr) calls->wait_for_aborted();
  return {};
}

void Communicator::give_way() {
  control_->abort(fail(ncclRemoteError, "ncclCommShrink was called with NCCL_SHRINK_ABORT"), rank_);
  if (const AsyncCalls *const calls = async_calls(); calls != nullptr) calls->wait_for_aborted();
}

Status Communicator::begin_to_finalize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finalized()) return fail(ncclInvalidArgument, "it was finalized before");
  if (status_.code() == ncclInProgress) return fail(ncclInvalidArgument, "the communicator is still being made");
  if (!status_.ok()) return status_;
  if (control_ != nullptr && control_->aborted()) return control_->abort_status(rank_);
  sound_.store(false, std::memory_order_release);
  finalized_ms_ = now_ms();
  if (control_ != nullptr) control_->finalize(rank_);
  finalized_.store(true, std::memory_order_release);
  return {};
}

Status Communicator::wait_for_calls() {
  Status now = state();
  for (; now.code() == ncclInProgress; now = state()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return now;
}

Status Communicator::suspend() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (suspended()) return {};
  if (finalized()) return fail(ncclInvalidUsage, "the communicator was finalized");
  if (!is_sound()) return status_.ok() ? control_->abort_status(rank_) : status_;
  sound_.store(false, std::memory_order_release);
  status_ = fail(ncclInvalidUsage, "the communicator is suspended: ncclCommResume goes first");
  suspended_.store(true, std::memory_order_release);
  return {};
}

Status Communicator::resume() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!suspended()) return {};
  suspended_.store(false, std::memory_order_release);
  if (revoked() || stopped_.load()) return {};
  status_ = {};
  sound_.store(true, std::memory_order_release);
  return {};
}

}  // namespace collc
