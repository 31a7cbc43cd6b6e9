#include "wire/proxy.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "plan/embedded_tables.h"
#include "wire/ucx_lock.h"
#include "wire/link.h"
#include "wire/near_cores.h"

namespace collc {
namespace {

constexpr int64_t kYieldUs = 50;
constexpr int64_t kMinNapUs = 20, kMaxNapUs = 1000;
constexpr unsigned long kSlackNs = 1000;
constexpr double kNicSeconds = 30;  // limit for NICs to find each other if other links join their ranks, too
// Limit for exit(); the second part of it for a running call of another library.
constexpr int64_t kExitMs = 10000, kLastCallMs = 1000;

// The connections of one communicator.
class ProxyLinks {
 public:
  ProxyLinks(const JoinRequest &request, std::vector<std::unique_ptr<WireConnection>> connections)
      : segment_(request.segment),
        placement_(request.placement),
        fifos_(request.fifos),
        lined_(request.lined),
        transfers_(request.transfers),
        is_of_machine_(request.ranks == nullptr) {
    if (request.ranks != nullptr) ranks_ = *request.ranks;
    const RemoteContext context{*segment_, placement_, fifos_, transfers_, lined_, is_of_machine_ ? nullptr : &ranks_};
    // Starts with the machine after this one, so that not all machines start with the same one.
    const auto count = static_cast<uint32_t>(connections.size());
    for (uint32_t k = 0; k < count; ++k)
      if (const uint32_t machine = (placement_.local_machine + k) % count; connections[machine] != nullptr)
        links_.push_back(std::make_unique<Link>(context, request.processes, machine, std::move(connections[machine])));
    for (uint32_t r = 0; r < placement_.machine.size(); ++r)
      if (request.processes[r] == request.processes[request.rank]) local_ranks_.push_back(r);
    // Ranks of other machines share no core with ranks here.
    for (uint32_t r = 0; is_of_machine_ && r < placement_.machine.size(); ++r)
      if (!placement_.is_here(r)) segment_->line(r).core.store(UINT32_MAX, std::memory_order_relaxed);
  }

  ~ProxyLinks() {
    if (is_of_machine_) segment_->release_proxy();
  }
  ProxyLinks(const ProxyLinks &) = delete;
  ProxyLinks &operator=(const ProxyLinks &) = delete;

  bool advance() {
    bool moved = false;
    for (const auto &link : links_) moved |= link->advance();
    return moved;
  }
  bool open() const {
    return std::any_of(links_.begin(), links_.end(), [](const auto &link) { return link->open(); });
  }
  // Returns whether the process may end: the links have delivered everything, or a rank of this process has not left, so that
  // it cannot be waited for.
  bool may_end() const {
    const bool have_left =
        std::all_of(local_ranks_.begin(), local_ranks_.end(), [this](uint32_t rank) { return segment_->has_left(rank); });
    return !have_left || std::all_of(links_.begin(), links_.end(), [](const auto &link) { return link->is_settled(); });
  }
  void add_to(std::vector<pollfd> *polled) const {
    for (const auto &link : links_) link->add_to(polled);
  }

 private:
  std::shared_ptr<Segment> segment_;
  Placement placement_;
  Fifos fifos_, lined_;
  TransferLayout transfers_;
  std::vector<Fifos> ranks_;
  bool is_of_machine_;  // false: the proxy of one rank, for NICs within a server
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<uint32_t> local_ranks_;  // ranks of this process
};

class ProxyThread {
 public:
  static ProxyThread &of_process();

  // `interfaces`: the network interfaces of its connections.
  Status adopt(std::unique_ptr<ProxyLinks> links, const std::vector<std::string> &interfaces) {
    const Turn turn(*this);
    communicators_.push_back(std::move(links));
    if (is_running_) return {};
    std::thread thread;
    const Status status = start_thread([this] { run(); }, &thread);
    if (!status.ok()) {
      communicators_.pop_back();
      return status;
    }
    run_near(thread.native_handle(), interfaces);
    thread.detach();
    is_running_ = true;
    return {};
  }

  // For exit(): waits until everything that the ranks sent before they left has arrived, or the deadline has passed.
  void settle(int64_t deadline) {
    while (!may_end(deadline) && now_ms() < deadline) poll(nullptr, 0, 1);
  }

 private:
  // Returns false if the proxy thread hangs in a call of another library until the deadline.
  bool may_end(int64_t deadline) {
    waiters_.fetch_add(1);
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    while (!lock.owns_lock() && now_ms() < deadline) {
      poll(nullptr, 0, 1);
      static_cast<void>(lock.try_lock());
    }
    const bool all = lock.owns_lock() && std::all_of(communicators_.begin(), communicators_.end(),
                                                     [](const auto &links) { return links->may_end(); });
    if (lock.owns_lock()) lock.unlock();
    waiters_.fetch_sub(1);
    return all;
  }

  // Locks the mutex for another thread. The proxy thread holds it most of the time, and lets threads that are counted in
  // waiters_ go first.
  class Turn {
   public:
    explicit Turn(ProxyThread &proxy) : proxy_(proxy) {
      proxy_.waiters_.fetch_add(1);
      proxy_.mutex_.lock();
    }
    ~Turn() {
      proxy_.mutex_.unlock();
      proxy_.waiters_.fetch_sub(1);
    }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;

   private:
    ProxyThread &proxy_;
  };

  void run() {
    // Makes naps as short as requested; by default the system adds 50 us.
    prctl(PR_SET_TIMERSLACK, kSlackNs, 0UL, 0UL, 0UL);
    int64_t idle_since = now_us();
    std::vector<pollfd> polled;
    for (;;) {
      bool moved = false;
      polled.clear();
      while (waiters_.load() != 0) sched_yield();
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &links : communicators_) {
          moved |= links->advance();
          links->add_to(&polled);
        }
        communicators_.erase(
            std::remove_if(communicators_.begin(), communicators_.end(), [](const auto &links) { return !links->open(); }),
            communicators_.end());
        if (communicators_.empty()) {
          is_running_ = false;
          return;
        }
      }
      if (moved)
        idle_since = now_us();
      else
        rest(now_us() - idle_since, polled);
    }
  }

  static void rest(int64_t idle_us, std::vector<pollfd> &polled) {
    if (idle_us < kYieldUs) {
      sched_yield();
      return;
    }
    const timespec nap{0, std::clamp((idle_us - kYieldUs) / 8, kMinNapUs, kMaxNapUs) * 1000};
    ppoll(polled.data(), polled.size(), &nap, nullptr);
  }

  std::mutex mutex_;
  std::atomic<int> waiters_{0};  // threads that wait for the lock
  std::vector<std::unique_ptr<ProxyLinks>> communicators_;
  bool is_running_ = false;
};

std::atomic<ProxyThread *> current{nullptr};

// A forked child gets a new one, because it has neither the thread nor the connections of its parent.
ProxyThread &ProxyThread::of_process() {
  static const bool prepared = [] {
    pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_relaxed); });
    // Runs before the destructors of the statics that exist by now, so that UCX is still intact.
    std::atexit([] {
      ProxyThread *const proxy = current.load(std::memory_order_acquire);
      if (proxy == nullptr) return;  // a child, whose parent may have been in any state during the fork
      const int64_t deadline = now_ms() + kExitMs;
      proxy->settle(deadline - kLastCallMs);
      end_engines(deadline);
    });
    return true;
  }();
  static_cast<void>(prepared);
  ProxyThread *proxy = current.load(std::memory_order_acquire);
  if (proxy != nullptr) return *proxy;
  auto *const new_proxy = new ProxyThread;  // never destroyed, because threads may outlive it
  if (current.compare_exchange_strong(proxy, new_proxy)) return *new_proxy;
  delete new_proxy;
  return *proxy;
}

// Returns whether a local rank belongs to this server of the plan.
bool has_rank_of_server(const Placement &placement, uint32_t server) {
  const uint32_t *const servers = tables().rank_servers + placement.allocation->first_server;
  for (uint32_t r = 0; r < placement.machine.size(); ++r)
    if (placement.is_here(r) && servers[placement.plan_rank[r]] == server) return true;
  return false;
}

using Connections = std::vector<std::unique_ptr<WireConnection>>;

// Returns the interfaces that the proxy thread should run close to.
std::vector<std::string> interfaces_of(const Connections &connections) {
  std::vector<std::string> all;
  for (const auto &connection : connections)
    if (connection != nullptr) {
      const std::vector<std::string> names = connection->interfaces();
      all.insert(all.end(), names.begin(), names.end());
    }
  return all;
}

// Called on the first rank of each machine: connects, and starts the proxy thread.
Status start_proxy(const JoinRequest &request, WireEngine &engine, const WireMeeting &meeting) {
  Connections connections;
  COLLC_RETURN_IF_FAILED(engine.meet(meeting, &connections));
  for (const auto &connection : connections)
    if (connection != nullptr)
      log(LogLevel::kInfo, "rank %u: joined with %s over %s", request.rank, connection->name().c_str(), engine.name());
  const std::vector<std::string> interfaces = interfaces_of(connections);
  COLLC_RETURN_IF_FAILED(request.segment->acquire_proxy(request.rank));
  auto links = std::make_unique<ProxyLinks>(request, std::move(connections));
  return ProxyThread::of_process().adopt(std::move(links), interfaces);
}

// A rank's part in an exchange. All ranks of a machine have one clock.
struct RankOutcome {
  int64_t failed_us;  // 0: it has not
  char why[256];
};

// Exchanges the outcome and the address of each rank. `refused` receives the failure with the earliest time, because others
// may be its consequences.
Status exchange_outcomes(const Exchange &exchange, const Status &status, const Bytes &address, std::vector<Bytes> *addresses,
                         std::string *refused) {
  RankOutcome rank_outcome = {status.ok() ? 0 : now_us(), {}};
  if (!status.ok()) std::strncpy(rank_outcome.why, status.text().c_str(), sizeof rank_outcome.why - 1);
  Bytes message = to_bytes(rank_outcome);
  message.insert(message.end(), address.begin(), address.end());
  COLLC_RETURN_IF_FAILED(exchange(message, addresses));
  int64_t first_us = INT64_MAX;
  for (size_t rank = 0; rank < addresses->size(); ++rank) {
    Bytes &reply = (*addresses)[rank];
    if (reply.size() < sizeof rank_outcome) return fail(ncclInvalidUsage, "rank %zu loads another version of collc", rank);
    std::memcpy(&rank_outcome, reply.data(), sizeof rank_outcome);
    reply.erase(reply.begin(), reply.begin() + sizeof rank_outcome);
    if (rank_outcome.failed_us == 0 || rank_outcome.failed_us >= first_us) continue;
    first_us = rank_outcome.failed_us;
    *refused = format("rank %zu: %s", rank,
                      printable(std::string(rank_outcome.why, strnlen(rank_outcome.why, sizeof rank_outcome.why))).c_str());
  }
  return {};
}

Status listen_for_ranks(const JoinRequest &request, std::unique_ptr<WireEngine> *engine, Bytes *address) {
  WirePlace place;
  const std::vector<uint64_t> &buses = request.placement.bus_ids;
  if (request.rank < buses.size() && buses[request.rank] != 0) place.gpus.push_back(buses[request.rank]);
  COLLC_RETURN_IF_FAILED(make_engine(place, engine));
  if (std::strcmp((*engine)->name(), "tcp") == 0)
    return fail(ncclInvalidUsage, "TCP within a server does not go through NICs; COLLC_NET=ucx uses RDMA");
  const Status status = (*engine)->listen(address);
  ProxyThread::of_process();  // as in join_machines()
  return status;
}

}  // namespace

Status join_ranks(const Status &ready, const JoinRequest &request, std::string *refused) {
  WireMeeting meeting;
  Status status = ready.ok() ? silence_seconds(&meeting.silence) : ready;
  std::unique_ptr<WireEngine> engine;
  Bytes address;
  if (status.ok()) status = listen_for_ranks(request, &engine, &address);
  COLLC_RETURN_IF_FAILED(exchange_outcomes(request.exchange, status, address, &meeting.addresses, refused));
  if (!refused->empty()) return {};
  meeting.secret = request.secret;
  meeting.self = request.placement.local_machine;
  meeting.seconds = std::min(request.seconds, kNicSeconds);
  meeting.stop = request.gone;
  Connections connections;
  status = engine->meet(meeting, &connections);
  const std::vector<std::string> interfaces = interfaces_of(connections);
  std::unique_ptr<ProxyLinks> links;
  if (status.ok()) links = std::make_unique<ProxyLinks>(request, std::move(connections));
  std::vector<Bytes> no_addresses;
  COLLC_RETURN_IF_FAILED(exchange_outcomes(request.exchange, status, {}, &no_addresses, refused));
  if (!refused->empty()) return {};
  log(LogLevel::kInfo, "rank %u: NICs join it with the other ranks of its server over %s", request.rank, engine->name());
  return ProxyThread::of_process().adopt(std::move(links), interfaces);
}

Status join_machines(const JoinRequest &request) {
  const Placement &placement = request.placement;
  uint32_t first = 0;
  while (!placement.is_here(first)) ++first;
  WireMeeting meeting;
  Bytes address;
  std::unique_ptr<WireEngine> engine;
  Status status = silence_seconds(&meeting.silence);
  WirePlace place;
  for (uint32_t i = 0; i < tables().ncards; ++i)
    if (has_rank_of_server(placement, tables().cards[i].server)) place.cards.push_back(tables().cards[i]);
  for (uint32_t r = 0; r < placement.bus_ids.size(); ++r)
    if (placement.is_here(r) && placement.bus_ids[r] != 0) place.gpus.push_back(placement.bus_ids[r]);
  if (status.ok()) status = make_engine(place, &engine);
  if (status.ok() && request.rank == first) {
    status = engine->listen(&address);
    ProxyThread::of_process();  // from now on exit() ends the engines before the libraries that they have loaded
  }
  // A rank that failed sends an empty address, and returns its error after the exchange, which the others wait for.
  std::vector<Bytes> addresses;
  COLLC_RETURN_IF_FAILED(request.exchange(address, &addresses));
  COLLC_RETURN_IF_FAILED(status);
  if (request.rank != first) return {};
  for (uint32_t m = 0; m < placement.nmachines(); ++m) {
    uint32_t first_rank = 0;
    while (placement.machine[first_rank] != m) ++first_rank;
    if (addresses[first_rank].empty()) return {};  // its error follows
    meeting.addresses.push_back(addresses[first_rank]);
  }
  meeting.secret = request.secret;
  meeting.self = placement.local_machine;
  meeting.seconds = request.seconds;
  meeting.stop = request.gone;
  const Status started = start_proxy(request, *engine, meeting);
  // If ranks have gone, the listener of the id knows the reason (a rank has died or failed before); exchange() returns it.
  if (!started.ok() && request.gone()) COLLC_RETURN_IF_FAILED(request.exchange({}, &addresses));
  return started;
}

}  // namespace collc
