// How the ranks of an id become a communicator. A failure on one rank is reported to all others at once.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <set>

#include "communicator/communicator.h"
#include "base/environment.h"
#include "base/log.h"
#include "bootstrap/exchange_fd.h"
#include "bootstrap/introduction.h"
#include "bootstrap/joint_attempt.h"
#include "communicator/nccl_variables.h"
#include "communicator/ranges.h"
#include "communicator/real_nccl.h"
#include "communicator/record_request.h"
#include "bootstrap/rendezvous.h"
#include "plan/embedded_tables.h"
#include "plan/live_machine.h"
#include "plan/place_by_links.h"
#include "plan/place_ranks.h"
#include "plan/routes.h"
#include "plan/servers.h"

namespace collc {
namespace {

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

// Reports a failure to ranks that wait for this rank outside of rounds.
Status end_now(Rendezvous &rendezvous, const Status &failure) {
  rendezvous.give_up(failure);
  return failure;
}

}  // namespace

Status Communicator::join(const ncclUniqueId &id, uint32_t nranks, uint32_t rank, const std::vector<uint32_t> &gpus) {
  const int64_t start = now_ms();
  nranks_ = nranks;
  rank_ = rank;
  gpus_ = gpus;
  RankContext context;
  // An invalid value is reported at the first exchange: a rank that stayed away would keep the others waiting.
  double creation_seconds = 0;
  Status status = bootstrap_seconds(&creation_seconds);
  const Status limit = read_number("COLLC_TIMEOUT", 0, 1e9, 0, &timeout_);
  context.timeout = timeout_;
  if (status.ok()) status = limit;
  if (status.ok()) status = check_tables();
  if (status.ok()) status = listen_for_requests();
  offer_ranges();
  context.tables = &tables();
  context.nranks = nranks_;
  context.rank = rank_;
  // The order is a hash of the random part of the id, because ranks that are in several communicators must launch the calls of
  // a group in one order.
  const std::string secret = secret_of(id);
  context.order = 0xcbf29ce484222325;
  for (const char byte : secret) context.order = (context.order ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  context.most_channels = most_channels(config_.most_channels);
  context.only_host_memory = forbids_peer_access();
  context.orders_launches = orders_launches();
  if (rank == 0) say_what_is_not_followed();
  context.stopped = [this] { return stopped_.load(); };

  Rendezvous rendezvous(context.stopped);
  COLLC_RETURN_IF_FAILED(rendezvous.join(id, nranks_, rank_, creation_seconds));
  try {
    status = set_up(rendezvous, secret_of(id), context, status);
  } catch (const std::exception &error) {
    status = fail(ncclSystemError, "%s", error.what());
  }
  if (!status.ok()) {
    rendezvous.give_up(status);
    return status;
  }
  if (rank_backend_ != nullptr) profile_ = Profile::make(context, context.order, config_.name);
  const std::string name = config_.name.empty() ? "" : format(" \"%s\"", printable(config_.name).c_str());
  log(LogLevel::kInfo, "rank %u of %u: communicator%s made in %lld ms", rank_, nranks_, name.c_str(),
      static_cast<long long>(now_ms() - start));
  return {};
}

// `status`: an error that this rank found before the first exchange.
Status Communicator::set_up(Rendezvous &rendezvous, const std::string &key, RankContext &context, Status status) {
  Introduction mine = {};
  LiveMachine found;
  if (status.ok()) status = read_live_machine(&found);
  if (status.ok() && gpus_.empty()) status = read_declared_gpus(nranks_, found, &gpus_);
  const Tuning tuning = check_tables().ok() ? find_tuning(rank_ == 0) : Tuning();
  if (status.ok()) status = introduce(&mine, gpus_, tuning, found.digest);
  std::vector<Introduction> introductions;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(mine, &introductions, status));
  std::vector<uint64_t> owners;
  for (const Introduction &one : introductions) owners.push_back(one.process);
  COLLC_RETURN_IF_FAILED(compare_builds(introductions));
  // All ranks know the same facts, so all come to the same decision.
  status = compare_disabled(introductions);
  if (status.ok()) status = compare_places(introductions);
  if (status.ok()) status = place_ranks(nranks_, found, gpus_, &placement_);
  std::vector<uint64_t> machines;
  for (const Introduction &one : introductions) machines.push_back(one.machine);
  if (status.ok()) status = place_on_machines(machines, found.is_described || gpus_.size() == nranks_, rank_, &placement_);
  if (status.ok() && nranks_ > 1 && backend().gpus() != nullptr)
    COLLC_RETURN_IF_FAILED(look_at_links(rendezvous, found.is_described || gpus_.size() == nranks_, &context.links, &status));
  if (!status.ok()) return hand_over(rendezvous, status);
  if (!placement_.machine.empty())
    for (const Introduction &one : introductions)
      placement_.host_names.push_back(printable(std::string(one.host, strnlen(one.host, sizeof one.host))));
  COLLC_RETURN_IF_FAILED(check_gpu_count(nranks_, gpus_));
  COLLC_RETURN_IF_FAILED(compare_tunings(introductions));
  COLLC_RETURN_IF_FAILED(compare_tls(introductions));
  if (placement_.allocation != nullptr) choices_ = Choices(*placement_.allocation, tuning);
  context.weights = choices_.weights();

  context.processes = owners;
  context.secret = key;
  context.cores = count_cores(introductions, rank_);
  JointAttempt attempt(rendezvous, rank_);
  status = set_up_memory(rendezvous, attempt, context);
  forget(key);
  if (!status.ok()) return attempt.has_failed() ? hand_over_late(rendezvous, context, status) : status;
  if (asks_for_check(introductions)) COLLC_RETURN_IF_FAILED(check_plan(context));
  rendezvous.leave();
  log_routes(placement_, rank_);
  log(LogLevel::kInfo, "rank %u of %u: %zu processes, %u cores, %.1f MB shared", rank_, nranks_,
      std::set<uint64_t>(owners.begin(), owners.end()).size(), context.cores,
      static_cast<double>(context.segment->control().bytes) / 1e6);
  return {};
}

// All that takes memory, or something of the driver. If it fails on one rank, all of them have tried and know.
Status Communicator::set_up_memory(Rendezvous &rendezvous, JointAttempt &attempt, RankContext &context) {
  std::shared_ptr<Segment> segment;
  const Status shared = share_memory(rendezvous, attempt, context, &segment);
  COLLC_RETURN_IF_FAILED(attempt.conclude(shared));  // no rank proceeds before all have mapped it
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    flight_ = std::make_shared<FlightRecord>(segment, placement_, rank_, context.order >> 24, backend().facts().notes_ends);
  }
  answer_requests(flight_);
  context.placement = placement_;
  context.segment = segment;
  for (uint32_t r = 0; r < nranks_; ++r) context.here += placement_.is_here(r) ? 1 : 0;
  context.seconds = rendezvous.seconds();
  context.gone = [this, &rendezvous] { return stopped_.load() || !rendezvous.connected(); };
  context.give_up = [&rendezvous](const Status &failure) { rendezvous.give_up(failure); };
  context.exchange = [&attempt](const Bytes &message, std::vector<Bytes> *all) { return attempt.exchange_bytes(message, all); };
  const Status opened = backend().open(context, &rank_backend_);
  // Ranks of the host target wait for each other outside of rounds.
  if (!opened.ok() && backend().gpus() == nullptr) rendezvous.give_up(opened);
  if (opened.ok() && rank_backend_ != nullptr && rank_backend_->chooser() != nullptr)
    rank_backend_->chooser()->adapt(&choices_);
  return attempt.conclude(opened);
}

// The real NCCL may not need the memory or the function of the driver that is missing here. Mistakes of the user are returned
// instead.
Status Communicator::hand_over_late(Rendezvous &rendezvous, RankContext &context, const Status &reason) {
  const bool lacks = reason.code() == ncclUnhandledCudaError || reason.code() == ncclSystemError;
  if (!lacks || backend().gpus() == nullptr) return reason;
  if (context.segment != nullptr) context.segment->abort(reason, rank_);
  rank_backend_.reset();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    flight_.reset();
    if (control_ != nullptr) control_->leave(rank_);
    control_.reset();
  }
  context.segment.reset();
  return hand_over(rendezvous, reason);
}

Status Communicator::check_plan(const RankContext &context) {
  std::vector<std::string> slow;
  COLLC_RETURN_IF_FAILED(check_links(context, *rank_backend_, &checked_, &slow));
  for (const std::string &one : slow)
    if (rank_ == 0) say("COLLC_CHECK: slow " + one);
  log(LogLevel::kInfo, "COLLC_CHECK: %zu pairs of ranks carry what is sent", checked_.size());
  return {};
}

// Where nobody has said which GPUs the ranks are, their bus ids and links say it. `fits`: whether the library serves them, the
// same on all.
Status Communicator::look_at_links(Rendezvous &rendezvous, bool declared, NvLinks *links, Status *fits) {
  std::vector<GpuPlace> places;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(backend().gpus()->place_of_device(), &places));
  *links = count_links(places, placement_.machine);
  placement_.bus_ids.clear();
  for (const GpuPlace &one : places) placement_.bus_ids.push_back(one.bus);
  if (declared) return {};
  if (placement_.machine.empty()) place_by_bus_ids(places, &placement_);
  std::vector<uint8_t> paths, own = backend().gpus()->paths_of_device(places);
  for (uint32_t r = 0; r < nranks_; ++r)
    if (!placement_.is_here(r)) own[r] = kUnknownPath;  // a bus id of another machine
  COLLC_RETURN_IF_FAILED(exchange_rows(
      [&](const Bytes &mine, std::vector<Bytes> *all) { return rendezvous.exchange_bytes(mine, all); }, own, &paths));
  *fits = place_by_links(*links, merge_paths(nranks_, paths), places, &placement_);
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
  std::vector<ncclUniqueId> ids;
  COLLC_RETURN_IF_FAILED(rendezvous.exchange(id, &ids, ready));
  rendezvous.leave();
  id = ids[0];
  static std::atomic<bool> said{false};
  if (rank_ == 0 && !said.exchange(true)) say(reason.text() + ": " + describe_real() + " takes this communicator");
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

Status Communicator::share_memory(Rendezvous &rendezvous, JointAttempt &attempt, const RankContext &context,
                                  std::shared_ptr<Segment> *shared) {
  const std::string &key = context.secret;
  const std::vector<uint64_t> &owners = context.processes;
  const Segment::Size size{nranks_, backend().facts().max_calls_ahead, backend().shared_bytes(tables(), placement_)};
  std::shared_ptr<Segment> segment;
  SocketName name = {};
  std::vector<SocketName> names;
  const std::function<bool()> stop = [this, &rendezvous] { return stopped_.load() || !rendezvous.connected(); };
  bool first = false;
  // The first rank on each machine makes the memory of that machine. Those elsewhere do not come for it.
  uint32_t maker = 0;
  while (!placement_.is_here(maker)) ++maker;
  std::vector<uint64_t> here = owners;
  for (uint32_t r = 0; r < nranks_; ++r)
    if (!placement_.is_here(r)) here[r] = owners[maker];
  if (rank_ == maker) {
    FdServer server;
    Status status = name_socket(&name);
    if (status.ok()) status = Segment::create(size, &segment);
    if (status.ok()) status = server.listen(name.text);
    claim(key, &first)->set(status, segment);
    COLLC_RETURN_IF_FAILED(attempt.exchange(name, &names, status));
    status = server.serve(segment->fd(), key, here, rank_, rendezvous.seconds(), stop);
    segment->hide();
    if (!status.ok()) return stop() ? rendezvous.verdict() : end_now(rendezvous, status);
  } else {
    COLLC_RETURN_IF_FAILED(attempt.exchange(name, &names));
    const std::shared_ptr<Pending> entry = claim(key, &first);
    if (first) {
      int fd = -1;
      Status status = fetch_fd(names[maker].text, maker, key, rank_, rendezvous.seconds(), stop, &fd);
      if (!status.ok()) status = stop() ? rendezvous.verdict() : end_now(rendezvous, status);
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
  control_ = segment;
  mail_.open(control_.get(), rank_, rendezvous.seconds());
  *shared = std::move(segment);
  return {};
}

}  // namespace collc
