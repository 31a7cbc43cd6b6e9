#include "cuda/loan_desk.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "base/log.h"

namespace collc::cuda {
namespace {

constexpr int kAgainMs = 5;    // when something could not be sent
constexpr int kLookMs = 1000;  // in any case: a program may close all descriptors that it finds

struct Desk {
  std::mutex mutex;
  std::vector<std::shared_ptr<Loans>> all;
  Descriptor bell;
  bool attended = false;
};

// A forked child has no such thread and nothing lent, and its parent's threads may have held the lock.
std::atomic<Desk *> current_desk{nullptr};

Desk &desk() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_desk.store(nullptr, std::memory_order_relaxed); });
  if (registered != 0) throw std::bad_alloc();
  Desk *known = current_desk.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto *const made = new Desk;  // outlives every thread
  if (current_desk.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

Descriptor make_bell() {
  return Descriptor::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

// Called with the mutex held.
void ring(Desk &self) {
  const uint64_t one = 1;
  // Full: it has been rung, and nobody has looked yet. A program may have closed it, and its number mean something else.
  if (self.bell.intact() && write(self.bell.get(), &one, sizeof one) < 0) return;
}

// False when nobody is left.
bool find_open(Desk &self, std::vector<std::shared_ptr<Loans>> *open) {
  const std::lock_guard<std::mutex> lock(self.mutex);
  if (!self.bell.intact()) self.bell = make_bell();
  self.all.erase(std::remove_if(self.all.begin(), self.all.end(), [](const auto &one) { return one->is_closed(); }),
                 self.all.end());
  *open = self.all;
  self.attended = !open->empty();
  return self.attended;
}

void attend_to_all(Desk &self) {
  const Uncaptured uncaptured;
  for (std::vector<std::shared_ptr<Loans>> open; find_open(self, &open);) {
    int timeout = kLookMs;
    for (const auto &loans : open)
      if (!loans->send()) timeout = kAgainMs;
    std::vector<pollfd> polled = {{self.bell.get(), POLLIN, 0}};
    for (const auto &loans : open) {
      loans->add_to(&polled);
      if (loans->timeout() >= 0) timeout = std::min(timeout, loans->timeout());
    }
    if (poll(polled.data(), polled.size(), timeout) < 0)
      for (pollfd &one : polled) one.revents = 0;
    uint64_t rung = 0;
    if (self.bell.intact() && read(self.bell.get(), &rung, sizeof rung) < 0 && errno != EAGAIN)
      log(LogLevel::kWarn, "the thread that shares buffers cannot read its bell: %s", std::strerror(errno));
    const pollfd *at = polled.data() + 1;
    for (const auto &loans : open) loans->handle_events(&at);
  }
}

}  // namespace

Status attend(const std::shared_ptr<Loans> &loans) {
  Desk &self = desk();
  const std::lock_guard<std::mutex> lock(self.mutex);
  if (!self.bell) self.bell = make_bell();
  if (!self.bell) return fail_errno("no descriptor for the thread that shares buffers (eventfd)", errno);
  if (!self.attended) {
    std::thread thread;
    COLLC_RETURN_IF_FAILED(start_thread([&self] { attend_to_all(self); }, &thread));
    thread.detach();
    self.attended = true;
  }
  self.all.push_back(loans);
  ring(self);
  return {};
}

void ring_desk() {
  Desk &self = desk();
  const std::lock_guard<std::mutex> lock(self.mutex);
  ring(self);
}

void forget_buffer(uint64_t number) {
  Desk &self = desk();
  const std::lock_guard<std::mutex> lock(self.mutex);
  for (const auto &loans : self.all) loans->forget(number);
  ring(self);
}

bool awaits_returned_memory() {
  Desk &self = desk();
  const std::lock_guard<std::mutex> lock(self.mutex);
  return std::any_of(self.all.begin(), self.all.end(), [](const auto &one) { return one->awaits_returns(); });
}

}  // namespace collc::cuda
