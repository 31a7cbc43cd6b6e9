#include "communicator/record_request.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/environment.h"
#include "base/log.h"

namespace collc {
namespace {

constexpr const char *kVariable = "COLLC_DUMP_SIGNAL";  // in messages

sem_t asked;
struct sigaction before = {};  // what the program does upon the signal

// Of all communicators of this process; never destroyed, since the thread may outlive main().
struct Records {
  std::mutex mutex;
  pid_t listener = 0;  // the process of the thread: a forked child has no such thread
  std::vector<std::weak_ptr<FlightRecord>> all;
};
Records &records() {
  static auto *const made = new Records;
  return *made;
}

void handle(int number, siginfo_t *info, void *context) {
  const int error = errno;
  sem_post(&asked);
  if ((before.sa_flags & SA_SIGINFO) != 0)
    before.sa_sigaction(number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(number);
  errno = error;
}

// The number of the signal, 0 if none is asked for.
Status read_signal(int *number) {
  const char *text = read_text("COLLC_DUMP_SIGNAL");
  *number = 0;
  if (text == nullptr) return {};
  if (std::strcmp(text, "USR1") == 0) *number = SIGUSR1;
  if (std::strcmp(text, "USR2") == 0) *number = SIGUSR2;
  char *end = nullptr;
  const long given = std::strtol(text, &end, 10);
  if (*end == '\0' && given >= SIGRTMIN && given <= SIGRTMAX) *number = static_cast<int>(given);
  if (*number == 0)
    return fail(ncclInvalidUsage, "%s=%.40s is neither USR1 nor USR2 nor a number from %d to %d", kVariable, text, SIGRTMIN,
                SIGRTMAX);
  // The sender of the signal expects that it does not end the program.
  if (read_path("COLLC_DUMP") == nullptr) return fail(ncclInvalidUsage, "%s is set, but not COLLC_DUMP, the folder", kVariable);
  return {};
}

// The records that exist; others are forgotten.
std::vector<std::shared_ptr<FlightRecord>> living() {
  Records &own = records();
  const std::lock_guard<std::mutex> lock(own.mutex);
  std::vector<std::shared_ptr<FlightRecord>> found;
  std::vector<std::weak_ptr<FlightRecord>> kept;
  for (const std::weak_ptr<FlightRecord> &one : own.all) {
    std::shared_ptr<FlightRecord> record = one.lock();
    if (record == nullptr) continue;
    kept.push_back(one);
    found.push_back(std::move(record));
  }
  own.all = std::move(kept);
  return found;
}

void answer(int number) {
  pthread_setname_np(pthread_self(), "collc-records");
  for (;;) {
    while (sem_wait(&asked) != 0) {
    }
    try {
      for (const std::shared_ptr<FlightRecord> &record : living()) record->show(format("signal %d asked for it", number));
    } catch (const std::exception &error) {
      log(LogLevel::kWarn, "%s: %s", kVariable, error.what());
    }
  }
}

}  // namespace

Status listen_for_requests() {
  int number = 0;
  COLLC_RETURN_IF_FAILED(read_signal(&number));
  if (number == 0) return {};
  Records &own = records();
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.listener == getpid()) return {};
  // A forked child has the handler, but neither the thread nor the communicators of its parent.
  const bool is_caught = own.listener != 0;
  own.all.clear();
  if (!is_caught && sem_init(&asked, 0, 0) != 0) return fail_errno(kVariable, errno);
  std::thread thread;
  COLLC_RETURN_IF_FAILED(start_thread([number] { answer(number); }, &thread));
  thread.detach();
  own.listener = getpid();
  if (is_caught) return {};
  struct sigaction ours = {};
  if (sigaction(number, nullptr, &before) != 0) return fail_errno(kVariable, errno);
  ours.sa_sigaction = handle;
  ours.sa_mask = before.sa_mask;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  return sigaction(number, &ours, nullptr) == 0 ? Status() : fail_errno(kVariable, errno);
}

void answer_requests(const std::shared_ptr<FlightRecord> &record) {
  Records &own = records();
  const std::lock_guard<std::mutex> lock(own.mutex);
  if (own.listener == getpid()) own.all.push_back(record);
}

}  // namespace collc
