#include "bootstrap/listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/machine.h"
#include "base/log.h"

namespace collc {
namespace {

constexpr int64_t kLingerMs = 20000;  // time limit for a rank to read the last message
// the thread stays this long without ids, because the next communicator is often created soon
constexpr int64_t kIdleMs = 1000;
constexpr int64_t kExitMs = 1000;     // how long process exit waits for ranks that must learn of a failure

std::atomic<Listener *> current{nullptr};
std::atomic<Listener *> last_abandoned{nullptr};
std::mutex current_mutex;

}  // namespace

Listener &Listener::of_process() {
  if (Listener *const found = current.load(std::memory_order_acquire)) return *found;
  static const int registered = pthread_atfork([] { current_mutex.lock(); }, [] { current_mutex.unlock(); },
                                               [] {
                                                 abandon();
                                                 current_mutex.unlock();
                                               });
  static const int at_exit = std::atexit([] {
    if (Listener *const found = current.load(std::memory_order_acquire)) found->wait_for_late_ranks();
  });
  if (registered != 0 || at_exit != 0) throw std::bad_alloc();
  const std::lock_guard<std::mutex> lock(current_mutex);
  if (current.load(std::memory_order_relaxed) == nullptr) current.store(new Listener, std::memory_order_release);
  return *current.load(std::memory_order_relaxed);
}

// Drops the listener, so that the next id gets a new one. Runs in a forked child, which cannot use its parent's listener: the
// thread exists only in the parent, and a thread of the parent may hold the lock.
void Listener::abandon() {
  Listener *const inherited = current.exchange(nullptr);
  if (inherited == nullptr) return;
  inherited->abandoned_ = last_abandoned;
  last_abandoned = inherited;
}

Status Listener::add(Id *id, double seconds, bool everywhere) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_ && !local_->intact()) {
    // The ids of this listener are lost, and its thread may wait forever. A new listener serves the next id.
    const std::lock_guard<std::mutex> change(current_mutex);
    abandon();
    current.store(new Listener, std::memory_order_release);
    return current.load(std::memory_order_relaxed)->add(id, seconds, everywhere);
  }
  if (!running_) COLLC_RETURN_IF_FAILED(start(everywhere));
  unsigned char secret[kSecretBytes];
  std::memcpy(secret, id->secret, sizeof secret);
  *id = place_;
  std::memcpy(id->secret, secret, sizeof secret);
  id->number = ++numbers_;
  Entry entry;
  std::memcpy(entry.secret, secret, sizeof secret);
  entry.seconds = seconds;
  ids_[id->number] = entry;
  return {};
}

Status Listener::start(bool everywhere) {
  place_ = {};
  place_.machine = this_machine();
  place_.network = this_network();
  place_.user = geteuid();
  COLLC_RETURN_IF_FAILED(random_bytes(place_.name, sizeof place_.name));
  Descriptor socket;
  COLLC_RETURN_IF_FAILED(listen_at(local_address(listener_name(place_)), &socket));
  local_ = std::make_unique<Acceptor>(std::move(socket), sizeof(Hello), false);
  Status status;
  if (everywhere) status = open_public_acceptor();
  std::thread thread;
  if (status.ok()) status = start_thread([this] { run(); }, &thread);
  if (!status.ok()) {
    local_.reset();
    public_.reset();
    return status;
  }
  thread.detach();
  running_ = true;
  idle_ms_ = now_ms();
  log(LogLevel::kInfo, "listening on a local socket%s%s", public_ != nullptr ? " and " : "",
      public_ != nullptr ? describe(public_address(place_)).c_str() : "");
  return {};
}

Status Listener::open_public_acceptor() {
  COLLC_RETURN_IF_FAILED(choose_public_address(&place_));
  if (place_.family == 0) return {};
  Descriptor socket;
  COLLC_RETURN_IF_FAILED(listen_at(public_address(place_), &socket));
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr *>(&bound), &size) != 0) return fail_errno("cannot listen", errno);
  place_.port = place_.family == AF_INET6 ? reinterpret_cast<sockaddr_in6 &>(bound).sin6_port
                                          : reinterpret_cast<sockaddr_in &>(bound).sin_port;
  public_ = std::make_unique<Acceptor>(std::move(socket), sizeof(Hello), false);
  return {};
}

void Listener::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    serve_once(lock);
    if (!ids_.empty() || !sessions_.empty() || !leaving_.empty()) idle_ms_ = now_ms();
    if (now_ms() - idle_ms_ > kIdleMs) break;
  }
  local_.reset();
  public_.reset();
  running_ = false;
}

void Listener::serve_once(std::unique_lock<std::mutex> &lock) {
  std::vector<pollfd> polled;
  for (const Leaving &one : leaving_) polled.push_back(one.connection.polled());
  for (const auto &[number, session] : sessions_) session.add_to(&polled);
  local_->add_to(&polled);
  if (public_ != nullptr) public_->add_to(&polled);
  const int limit = timeout();
  lock.unlock();
  if (poll(polled.data(), polled.size(), limit) < 0) {
    for (pollfd &one : polled) one.revents = 0;
    if (errno != EINTR)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for example when the limit of descriptors was lowered
  }
  lock.lock();
  const pollfd *at = polled.data();
  handle_leaving(&at);
  for (auto &[number, session] : sessions_) {
    session.handle_events(&at);
    collect(session);
  }
  for (Acceptor *acceptor : {local_.get(), public_.get()})
    if (acceptor != nullptr) acceptor->handle_events(&at, owner_of(*acceptor));
  for (auto entry = sessions_.begin(); entry != sessions_.end();) {
    const bool over = entry->second.over();
    if (over) ids_.erase(entry->first);
    entry = over ? sessions_.erase(entry) : std::next(entry);
  }
  told_.notify_all();
}

int Listener::timeout() const {
  int least = local_->timeout();
  const auto take = [&least](int other) {
    if (other >= 0) least = least < 0 ? other : std::min(least, other);
  };
  if (public_ != nullptr) take(public_->timeout());
  for (const auto &[number, session] : sessions_) take(session.timeout());
  if (!leaving_.empty() || (ids_.empty() && sessions_.empty())) take(static_cast<int>(kIdleMs) / 2);
  return least;
}

Acceptor::Owner Listener::owner_of(Acceptor &acceptor) {
  const auto key_for = [this](const unsigned char *words) -> std::string {
    Hello hello;
    std::memcpy(&hello, words, sizeof hello);
    const auto entry = ids_.find(hello.number);
    if (hello.magic != kHelloMagic || entry == ids_.end()) return "";
    return hex_of(entry->second.secret, kSecretBytes);
  };
  const auto admit_one = [this, &acceptor](Descriptor client, const unsigned char *words) {
    admit(acceptor, std::move(client), words);
  };
  return {key_for, admit_one};
}

void Listener::admit(Acceptor &acceptor, Descriptor client, const unsigned char *words) {
  Hello hello;
  std::memcpy(&hello, words, sizeof hello);
  const auto entry = ids_.find(hello.number);
  if (entry == ids_.end()) return;  // its communicator was completed while the caller was challenged
  Connection connection(std::move(client));
  RendezvousSession &session = sessions_.try_emplace(hello.number, entry->second.seconds).first->second;
  const bool room = acceptor.has_reserve();
  session.admit(std::move(connection), hello);
  if (!room) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    session.fail_all(ncclSystemError,
                     format("the process that made the id has no descriptor left for rank %u: it may have %llu "
                            "(ulimit -n)",
                            hello.rank, static_cast<unsigned long long>(limit.rlim_cur)));
  }
  collect(session);
}

void Listener::collect(RendezvousSession &session) {
  for (Connection &one : session.take_closing()) leaving_.push_back({std::move(one), now_ms()});
}

void Listener::handle_leaving(const pollfd **at) {
  std::vector<Leaving> remaining;
  for (Leaving &one : leaving_) {
    const short events = (*at)++->revents;
    if ((events & POLLOUT) != 0) one.connection.flush();
    bool there = true;
    if ((events & ~POLLOUT) != 0) {
      one.connection.received.clear();
      there = one.connection.read(1 << 16);
    }
    if (there && now_ms() - one.since < kLingerMs) remaining.push_back(std::move(one));
  }
  leaving_ = std::move(remaining);
}

// Runs at process exit. Gives late ranks of a failed creation time to learn of the failure.
void Listener::wait_for_late_ranks() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto longest = [this] {
    int64_t left = 0;
    for (const auto &[number, session] : sessions_)
      if (const int64_t since = session.pending_failure_ms(); since >= 0) left = std::max(left, kExitMs - since);
    return running_ ? left : 0;
  };
  for (int64_t left = longest(); left > 0; left = longest()) told_.wait_for(lock, std::chrono::milliseconds(left));
}

}  // namespace collc
