#include "wire/courier.h"

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
#include "wire/foreign.h"
#include "wire/link.h"
#include "wire/near.h"

namespace collc {
namespace {

constexpr int64_t kYieldUs = 50;
constexpr int64_t kLeastNapUs = 20, kMostNapUs = 1000;
constexpr unsigned long kSlackNs = 1000;
constexpr double kBesideSeconds = 30;  // limit for NICs to find each other if other links join their ranks, too
// Limit for exit(); the second part of it for a running call of another library.
constexpr int64_t kExitMs = 10000, kLastCallMs = 1000;

// The connections of one communicator.
class Wires {
 public:
  Wires(const JoinRequest &request, std::vector<std::unique_ptr<WireConnection>> connections)
      : segment_(request.segment),
        placement_(request.placement),
        fifos_(request.fifos),
        lined_(request.lined),
        transfers_(request.transfers),
        is_of_machine_(request.ranks == nullptr) {
    if (request.ranks != nullptr) ranks_ = *request.ranks;
    const LaneContext context{*segment_, placement_, fifos_, transfers_, lined_, is_of_machine_ ? nullptr : &ranks_};
    // Starts with the machine after this one, so that not all machines start with the same one.
    const auto count = static_cast<uint32_t>(connections.size());
    for (uint32_t k = 0; k < count; ++k)
      if (const uint32_t machine = (placement_.local_machine + k) % count; connections[machine] != nullptr)
        links_.push_back(std::make_unique<Link>(context, request.processes, machine, std::move(connections[machine])));
    for (uint32_t r = 0; r < placement_.machine.size(); ++r)
      if (request.processes[r] == request.processes[request.rank]) own_.push_back(r);
    // Ranks of other machines share no core with ranks here.
    for (uint32_t r = 0; is_of_machine_ && r < placement_.machine.size(); ++r)
      if (!placement_.is_here(r)) segment_->line(r).core.store(UINT32_MAX, std::memory_order_relaxed);
  }

  ~Wires() {
    if (is_of_machine_) segment_->release_courier();
  }
  Wires(const Wires &) = delete;
  Wires &operator=(const Wires &) = delete;

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
    const bool left = std::all_of(own_.begin(), own_.end(), [this](uint32_t rank) { return segment_->has_left(rank); });
    return !left || std::all_of(links_.begin(), links_.end(), [](const auto &link) { return link->settled(); });
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
  std::vector<uint32_t> own_;  // ranks of this process
};

class Courier {
 public:
  static Courier &of_process();

  // `interfaces`: the network interfaces of its connections.
  Status adopt(std::unique_ptr<Wires> wires, const std::vector<std::string> &interfaces) {
    const Turn turn(*this);
    all_.push_back(std::move(wires));
    if (running_) return {};
    std::thread thread;
    const Status status = start_thread([this] { run(); }, &thread);
    if (!status.ok()) {
      all_.pop_back();
      return status;
    }
    stay_near(thread.native_handle(), interfaces);
    thread.detach();
    running_ = true;
    return {};
  }

  // For exit(): waits until everything that the ranks sent before they left has arrived, or the deadline has passed.
  void settle(int64_t deadline) {
    while (!may_end(deadline) && now_ms() < deadline) poll(nullptr, 0, 1);
  }

 private:
  // Returns false if the proxy thread hangs in a call of another library until the deadline.
  bool may_end(int64_t deadline) {
    callers_.fetch_add(1);
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    while (!lock.owns_lock() && now_ms() < deadline) {
      poll(nullptr, 0, 1);
      static_cast<void>(lock.try_lock());
    }
    const bool all =
        lock.owns_lock() && std::all_of(all_.begin(), all_.end(), [](const auto &wires) { return wires->may_end(); });
    if (lock.owns_lock()) lock.unlock();
    callers_.fetch_sub(1);
    return all;
  }

  // Locks the mutex for another thread. The proxy thread holds it most of the time, and lets threads that are counted in
  // callers_ go first.
  class Turn {
   public:
    explicit Turn(Courier &courier) : courier_(courier) {
      courier_.callers_.fetch_add(1);
      courier_.mutex_.lock();
    }
    ~Turn() {
      courier_.mutex_.unlock();
      courier_.callers_.fetch_sub(1);
    }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;

   private:
    Courier &courier_;
  };

  void run() {
    // Makes naps as short as requested; by default the system adds 50 us.
    prctl(PR_SET_TIMERSLACK, kSlackNs, 0UL, 0UL, 0UL);
    int64_t idle_since = now_us();
    std::vector<pollfd> polled;
    for (;;) {
      bool moved = false;
      polled.clear();
      while (callers_.load() != 0) sched_yield();
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &wires : all_) {
          moved |= wires->advance();
          wires->add_to(&polled);
        }
        all_.erase(std::remove_if(all_.begin(), all_.end(), [](const auto &wires) { return !wires->open(); }), all_.end());
        if (all_.empty()) {
          running_ = false;
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
    const timespec nap{0, std::clamp((idle_us - kYieldUs) / 8, kLeastNapUs, kMostNapUs) * 1000};
    ppoll(polled.data(), polled.size(), &nap, nullptr);
  }

  std::mutex mutex_;
  std::atomic<int> callers_{0};  // threads that wait for the lock
  std::vector<std::unique_ptr<Wires>> all_;
  bool running_ = false;
};

std::atomic<Courier *> current{nullptr};

// A forked child gets a new one, because it has neither the thread nor the connections of its parent.
Courier &Courier::of_process() {
  static const bool prepared = [] {
    pthread_atfork(nullptr, nullptr, [] { current.store(nullptr, std::memory_order_relaxed); });
    // Runs before the destructors of the statics that exist by now, so that UCX is still intact.
    std::atexit([] {
      Courier *const courier = current.load(std::memory_order_acquire);
      if (courier == nullptr) return;  // a child, whose parent may have been in any state during the fork
      const int64_t deadline = now_ms() + kExitMs;
      courier->settle(deadline - kLastCallMs);
      end_engines(deadline);
    });
    return true;
  }();
  static_cast<void>(prepared);
  Courier *known = current.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Courier;  // never destroyed, because threads may outlive it
  if (current.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

// Returns whether a local rank belongs to this server of the plan.
bool plays(const Placement &placement, uint32_t server) {
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
      const std::vector<std::string> own = connection->interfaces();
      all.insert(all.end(), own.begin(), own.end());
    }
  return all;
}

// Called on the first rank of each machine: connects, and starts the proxy thread.
Status start_courier(const JoinRequest &request, WireEngine &engine, const WireMeeting &meeting) {
  Connections connections;
  COLLC_RETURN_IF_FAILED(engine.meet(meeting, &connections));
  for (const auto &connection : connections)
    if (connection != nullptr)
      log(LogLevel::kInfo, "rank %u: joined with %s over %s", request.rank, connection->name().c_str(), engine.name());
  const std::vector<std::string> interfaces = interfaces_of(connections);
  COLLC_RETURN_IF_FAILED(request.segment->acquire_courier(request.rank));
  auto wires = std::make_unique<Wires>(request, std::move(connections));
  return Courier::of_process().adopt(std::move(wires), interfaces);
}

// A rank's part in an exchange. All ranks of a machine have one clock.
struct Part {
  int64_t failed_us;  // 0: it has not
  char why[256];
};

// Exchanges the outcome and the address of each rank. `refused` receives the failure with the earliest time, because others
// may be its consequences.
Status exchange_parts(const Exchange &exchange, const Status &own, const Bytes &address, std::vector<Bytes> *addresses,
                      std::string *refused) {
  Part part = {own.ok() ? 0 : now_us(), {}};
  if (!own.ok()) std::strncpy(part.why, own.text().c_str(), sizeof part.why - 1);
  Bytes told = to_bytes(part);
  told.insert(told.end(), address.begin(), address.end());
  COLLC_RETURN_IF_FAILED(exchange(told, addresses));
  int64_t first_us = INT64_MAX;
  for (size_t rank = 0; rank < addresses->size(); ++rank) {
    Bytes &one = (*addresses)[rank];
    if (one.size() < sizeof part) return fail(ncclInvalidUsage, "rank %zu loads another version of collc", rank);
    std::memcpy(&part, one.data(), sizeof part);
    one.erase(one.begin(), one.begin() + sizeof part);
    if (part.failed_us == 0 || part.failed_us >= first_us) continue;
    first_us = part.failed_us;
    *refused = format("rank %zu: %s", rank, printable(std::string(part.why, strnlen(part.why, sizeof part.why))).c_str());
  }
  return {};
}

Status listen_beside(const JoinRequest &request, std::unique_ptr<WireEngine> *engine, Bytes *address) {
  WirePlace place;
  const std::vector<uint64_t> &buses = request.placement.bus_ids;
  if (request.rank < buses.size() && buses[request.rank] != 0) place.gpus.push_back(buses[request.rank]);
  COLLC_RETURN_IF_FAILED(make_engine(place, engine));
  if (std::strcmp((*engine)->name(), "tcp") == 0)
    return fail(ncclInvalidUsage, "what TCP brings to the same server passes no card; COLLC_NET=ucx has RDMA");
  const Status status = (*engine)->listen(address);
  Courier::of_process();  // as in join_machines()
  return status;
}

}  // namespace

Status join_ranks(const Status &ready, const JoinRequest &request, std::string *refused) {
  WireMeeting meeting;
  Status status = ready.ok() ? silence_seconds(&meeting.silence) : ready;
  std::unique_ptr<WireEngine> engine;
  Bytes address;
  if (status.ok()) status = listen_beside(request, &engine, &address);
  COLLC_RETURN_IF_FAILED(exchange_parts(request.exchange, status, address, &meeting.addresses, refused));
  if (!refused->empty()) return {};
  meeting.secret = request.secret;
  meeting.self = request.placement.local_machine;
  meeting.seconds = std::min(request.seconds, kBesideSeconds);
  meeting.stop = request.gone;
  Connections connections;
  status = engine->meet(meeting, &connections);
  const std::vector<std::string> interfaces = interfaces_of(connections);
  std::unique_ptr<Wires> wires;
  if (status.ok()) wires = std::make_unique<Wires>(request, std::move(connections));
  std::vector<Bytes> nothing;
  COLLC_RETURN_IF_FAILED(exchange_parts(request.exchange, status, {}, &nothing, refused));
  if (!refused->empty()) return {};
  log(LogLevel::kInfo, "rank %u: network cards join it with the others of its server over %s", request.rank, engine->name());
  return Courier::of_process().adopt(std::move(wires), interfaces);
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
    if (plays(placement, tables().cards[i].server)) place.cards.push_back(tables().cards[i]);
  for (uint32_t r = 0; r < placement.bus_ids.size(); ++r)
    if (placement.is_here(r) && placement.bus_ids[r] != 0) place.gpus.push_back(placement.bus_ids[r]);
  if (status.ok()) status = make_engine(place, &engine);
  if (status.ok() && request.rank == first) {
    status = engine->listen(&address);
    Courier::of_process();  // from now on exit() ends the engines before the libraries that they have loaded
  }
  // A rank that failed sends an empty address, and returns its error after the exchange, which the others wait for.
  std::vector<Bytes> addresses;
  COLLC_RETURN_IF_FAILED(request.exchange(address, &addresses));
  COLLC_RETURN_IF_FAILED(status);
  if (request.rank != first) return {};
  for (uint32_t m = 0; m < placement.nmachines(); ++m) {
    uint32_t speaker = 0;
    while (placement.machine[speaker] != m) ++speaker;
    if (addresses[speaker].empty()) return {};  // its error follows
    meeting.addresses.push_back(addresses[speaker]);
  }
  meeting.secret = request.secret;
  meeting.self = placement.local_machine;
  meeting.seconds = request.seconds;
  meeting.stop = request.gone;
  const Status started = start_courier(request, *engine, meeting);
  // If ranks have gone, the listener of the id knows the reason (a rank has died or failed before); exchange() returns it.
  if (!started.ok() && request.gone()) COLLC_RETURN_IF_FAILED(request.exchange({}, &addresses));
  return started;
}

}  // namespace collc
