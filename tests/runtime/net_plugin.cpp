// A network plugin made for NCCL, of version VERSION (8 to 12), over sockets: one that judges who uses it. A call that NCCL would never
// make ends the process, with a line in the file JUDGE_LOG. It is as awkward as a plugin may be: comms come late, requests are not
// taken at once, nothing moves but in test(), a receiver must have posted before a sender may, what is posted when a
// comm is closed goes on, and functions have statics of their own, after whose end nothing may be called. Memory of a GPU is that of
// the mock driver: what was received is there only when it has been flushed, and all comms flush the GPU that was in use when the
// first of them was made.
//   JUDGE_LOG       violations, and a line for each start and each comm that is closed
//   JUDGE_EAGER=1   a message is sent whether or not there is a receive for it
//   JUDGE_FAIL      "isend:20": the 20th call of a function in a process fails; "isend": each from now on
//   JUDGE_HANGS     "test:300": it does not return
//   JUDGE_ANSWERS   a message is sent so many milliseconds after it has left, if its receiver is there until then, 0
//   JUDGE_SLOW      regMr() takes so many milliseconds, 0
//   JUDGE_LATE      how often connect() and accept() are called in vain once they could give a comm, 3
//   JUDGE_REFUSES   "init:12", "devices:12", "none:12": a plugin of version 12 does not start, does not tell its devices, has none;
//                   "gpus:12": it registers no memory of GPUs
//   JUDGE_FAULT     "no flush": as if nobody flushed; "touch": the CPU loads from memory of a GPU
//   JUDGE_STARTED=1  init() answers an error, since another library has started the plugin
//   JUDGE_ENDS=1    nothing starts after the last context was closed
//   JUDGE_WAITS=1   closeSend() waits for the other end's closeRecv()
//   JUDGE_DONTFORK=1  children of the process do not have the pages of registered memory
//   JUDGE_INTERFACE  where it listens, lo
//   JUDGE_NAME, JUDGE_SPEEDS ("10000,100000": a device each), JUDGE_MEMORY (kinds, 1: host, 3: GPUs' too), JUDGE_MOST (bytes)
#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum { kSuccess = 0, kSystemError = 2 };
constexpr int kMostRequests = 32;
constexpr uint64_t kMagic = 0x6a75646765;

std::string setting(const char *name, const char *otherwise) {
  const char *const text = std::getenv(name);
  return text != nullptr && *text != 0 ? text : otherwise;
}

void note(const std::string &line) {
  const std::string file = setting("JUDGE_LOG", "");
  const int fd = file.empty() ? 2 : open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const std::string text = line + "\n";
  if (write(fd, text.data(), text.size()) < 0) std::abort();
  if (fd != 2) close(fd);
}

void require(bool right, const std::string &what) {
  if (right) return;
  note("violation: " + what);
  std::abort();
}

// Whether this call of a function is one that fails.
bool fails(const char *function) {
  static std::map<std::string, int> *const calls = new std::map<std::string, int>;
  const std::string call = std::string(function) + ":" + std::to_string(++(*calls)[function]);
  if (setting("JUDGE_HANGS", "") == call) note("hangs");
  while (setting("JUDGE_HANGS", "") == call) std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::string failing = setting("JUDGE_FAIL", "");
  return failing == call || failing == function;
}

std::chrono::milliseconds milliseconds(const char *name) {
  return std::chrono::milliseconds(std::atoi(setting(name, "0").c_str()));
}

bool refuses(const std::string &what) { return setting("JUDGE_REFUSES", "") == what + ":" + std::to_string(VERSION); }

// Once the process has taken the library down.
struct Presence {
  static bool gone;
  ~Presence() { gone = true; }
} presence;
bool Presence::gone = false;

// One thread at a time.
std::atomic<bool> busy{false};
struct Turn {
  Turn() {
    require(!Presence::gone, "a call of a library that is taken down");
    require(!busy.exchange(true), "two threads at once");
  }
  ~Turn() { busy = false; }
};

struct Comm;
struct Request {
  Comm *comm;
  char *data;
  size_t size, moved = 0;
  bool done = false, over = false;
  std::chrono::steady_clock::time_point done_at = {};
  char *on_gpu = nullptr;  // where a message that was received goes; `data`: what waits for a flush
  Request *flushes = nullptr;
};

struct Memory {
  char *data;
  size_t size;
  bool on_gpu;
};

// Of the mock driver: -1: memory of a GPU that no card may touch, 0: no memory of any, else that of GPU N - 1.
int gpu_of(const void *at, size_t size) {
  static const auto ask = reinterpret_cast<int (*)(const void *, size_t)>(dlsym(RTLD_DEFAULT, "mock_gpu_of"));
  return ask == nullptr ? 0 : ask(at, size);
}

void show_card(const void *at, size_t size) {
  reinterpret_cast<int (*)(const void *, size_t)>(dlsym(RTLD_DEFAULT, "mock_card_memory"))(at, size);
}

char *card_address(const void *at) {
  return reinterpret_cast<char *(*)(const void *)>(dlsym(RTLD_DEFAULT, "mock_card_address"))(at);
}

// The one that this thread uses; -1: none.
int gpu_in_use() {
  static const auto ask = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "mock_gpu_in_use"));
  return ask == nullptr ? -1 : ask();
}

// Which GPU that was when the process made its first comm: by a buffer there all of them flush.
int flushed_gpu() {
  static const int first = gpu_in_use();
  return first;
}

struct Context {
  int comms = 0;
  bool open = true;
};

struct Comm {
  int fd = -1;
  bool sends = false, listens = false, open = true;
  Context *context = nullptr;
  uint64_t calls = 0, messages = 0, posted = 0;
  uint64_t credits = 0;  // receives that the other end has posted
  bool farewell = false;  // it is in closeRecv()
  uint64_t header = 0;  // of the message under way
  size_t header_moved = 0;
  std::deque<Request *> requests;
  uint64_t on_gpu = 0;  // messages that were there
  std::list<Request *> unflushed;
  std::set<Memory *> memory;
  int late = 0;
};

std::set<Comm *> &all() {
  static auto *const comms = new std::set<Comm *>;
  return *comms;
}

Comm *check(void *comm, bool sends) {
  auto *const one = static_cast<Comm *>(comm);
  require(all().count(one) == 1 && one->open && !one->listens && one->sends == sends, "a comm that is none of this kind");
  return one;
}

ssize_t move(const Comm &comm, void *data, size_t size, bool out) {
  const ssize_t n = out ? send(comm.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(comm.fd, data, size, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return n <= 0 ? -1 : n;
}

int late() { return std::atoi(setting("JUDGE_LATE", "3").c_str()); }

bool eager() { return setting("JUDGE_EAGER", "0") == "1"; }

constexpr char kCredit = 1, kFarewell = 2;

// A byte from the receiver for each receive that it has posted, and one for its end.
bool read_credits(Comm &comm) {
  char bytes[64];
  const ssize_t n = move(comm, bytes, sizeof bytes, false);
  for (ssize_t i = 0; i < n; ++i) {
    comm.credits += bytes[i] == kCredit ? 1 : 0;
    comm.farewell |= bytes[i] == kFarewell;
  }
  return n >= 0;
}

// As old plugins do, which would wait for ever.
void say_farewell(Comm &comm) {
  const char farewell = kFarewell;
  if (!comm.sends) {
    static_cast<void>(move(comm, const_cast<char *>(&farewell), 1, true));
    return;
  }
  for (int i = 0; i < 20000 && !comm.farewell && read_credits(comm); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!comm.farewell) note("closed alone");
}

// The first request that is not done.
bool progress(Comm &comm) {
  if (comm.sends && !read_credits(comm)) return false;
  for (Request *const one : comm.requests) {
    if (one->done) continue;
    if (comm.header_moved == 0 && comm.sends) comm.header = one->size;
    while (comm.header_moved < sizeof comm.header) {
      const ssize_t n = move(comm, reinterpret_cast<char *>(&comm.header) + comm.header_moved,
                             sizeof comm.header - comm.header_moved, comm.sends);
      if (n <= 0) return n == 0;
      comm.header_moved += static_cast<size_t>(n);
    }
    require(comm.sends || comm.header <= one->size, "a message that is larger than the receive");
    while (one->moved < comm.header) {
      const ssize_t n = move(comm, one->data + one->moved, comm.header - one->moved, comm.sends);
      if (n <= 0) return n == 0;
      one->moved += static_cast<size_t>(n);
    }
    one->done = true;
    one->done_at = std::chrono::steady_clock::now();
    comm.header_moved = 0;
    ++comm.messages;
  }
  return true;
}

// What a plugin whose library goes on by itself does with what was posted: a receive that a message has come for is written.
void go_on(const Comm &closed) {
  std::thread([closed = Comm(closed)]() mutable {
    const uint64_t before = closed.messages;
    for (int i = 0; i < 200 && progress(closed); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (closed.messages != before) note("went on after close");
    close(closed.fd);
  }).detach();
}

int shut(Comm *comm) {
  static Presence own;
  size_t outstanding = 0;
  for (const Request *const one : comm->requests) outstanding += one->over ? 0 : 1;
  require(comm->memory.empty(), "memory is registered when a comm is closed");
  note(std::string(comm->sends ? "closeSend" : "closeRecv") + " messages " + std::to_string(comm->messages) + " outstanding " +
       std::to_string(outstanding));
  if (setting("JUDGE_WAITS", "0") == "1") say_farewell(*comm);
  comm->open = false;
  if (comm->context != nullptr) --comm->context->comms;
  if (outstanding > 0)
    go_on(*comm);
  else
    close(comm->fd);
  return kSuccess;
}

sockaddr_in own_address() {
  ifreq asked = {};
  std::snprintf(asked.ifr_name, sizeof asked.ifr_name, "%s", setting("JUDGE_INTERFACE", "lo").c_str());
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  require(ioctl(fd, SIOCGIFADDR, &asked) == 0, "JUDGE_INTERFACE");
  close(fd);
  sockaddr_in address = {};
  std::memcpy(&address, &asked.ifr_addr, sizeof address);
  return address;
}

// 128 bytes, with what connect() has to remember.
struct Handle {
  uint64_t magic;
  sockaddr_in address;
  Comm *under_way;
  char rest[128 - sizeof(uint64_t) - sizeof(sockaddr_in) - sizeof(Comm *)];
};
static_assert(sizeof(Handle) == 128, "NCCL_NET_HANDLE_MAXSIZE");

// What the caller has to close.
void *give(Comm *comm) {
  if (comm->context != nullptr) ++comm->context->comms;
  return comm;
}

Comm *make(int fd, bool sends, Context *context) {
  static_cast<void>(flushed_gpu());
  auto *const comm = new Comm;
  comm->fd = fd;
  comm->sends = sends;
  comm->context = context;
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  all().insert(comm);
  return comm;
}

int listen_at(Context *context, int device, void *handle, void **made) {
  const Turn turn;
  require(device >= 0 && device < 8 && handle != nullptr, "arguments of listen");
  if (fails("listen")) return kSystemError;
  sockaddr_in address = own_address();
  socklen_t size = sizeof address;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<sockaddr *>(&address), size) != 0 || listen(fd, 1) != 0) return kSystemError;
  getsockname(fd, reinterpret_cast<sockaddr *>(&address), &size);
  Comm *const comm = make(fd, false, context);
  comm->listens = true;
  const Handle told = {kMagic, address, nullptr, {}};
  std::memcpy(handle, &told, sizeof told);
  *made = give(comm);
  return kSuccess;
}

int connect_to(Context *context, void *handle, void **made, void **on_device) {
  const Turn turn;
  static Presence own;
  auto *const told = static_cast<Handle *>(handle);
  require(told->magic == kMagic && *made == nullptr, "arguments of connect");
  require(on_device != nullptr && *on_device == nullptr, "a comm on a GPU is wanted");
  if (fails("connect")) return kSystemError;
  if (told->under_way == nullptr) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int result = connect(fd, reinterpret_cast<sockaddr *>(&told->address), sizeof told->address);
    if (result != 0 && errno != EINPROGRESS) return kSystemError;
    told->under_way = make(fd, true, context);
  }
  Comm *const comm = told->under_way;
  pollfd ready = {comm->fd, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || ++comm->late <= late()) return kSuccess;
  if ((ready.revents & (POLLERR | POLLHUP)) != 0) return kSystemError;
  *made = give(comm);
  return kSuccess;
}

int accept_at(void *listening, void **made, void **on_device) {
  const Turn turn;
  static Presence own;
  auto *const door = static_cast<Comm *>(listening);
  require(all().count(door) == 1 && door->open && door->listens, "accept without listen");
  require(*made == nullptr && on_device != nullptr && *on_device == nullptr, "a comm on a GPU is wanted");
  if (fails("accept")) return kSystemError;
  pollfd ready = {door->fd, POLLIN, 0};
  if (poll(&ready, 1, 0) != 1 || ++door->late <= late()) return kSuccess;
  const int fd = accept4(door->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return kSystemError;
  *made = give(make(fd, false, door->context));
  return kSuccess;
}

int enroll(void *comm, void *data, size_t size, int kind, void **memory) {
  const Turn turn;
  static Presence own;
  auto *const one = static_cast<Comm *>(comm);
  require(all().count(one) == 1 && one->open && !one->listens, "memory for no comm");
  const int kinds = std::atoi(setting("JUDGE_MEMORY", "1").c_str());
  require((kind == 1 || kind == 2) && (kinds & kind) != 0 && data != nullptr && size > 0, "memory of another kind");
  require(kind == 2 ? gpu_of(data, size) > 0 : gpu_of(data, size) == 0, "memory that is not of its kind");
  require(kind == 1 || gpu_of(data, size) - 1 == gpu_in_use(), "memory of a GPU that the thread does not use");
  require(kind == 1 || gpu_in_use() == flushed_gpu(), "memory of a GPU that is not flushed");
  if (fails("regMr") || (kind == 2 && refuses("gpus"))) return kSystemError;
  std::this_thread::sleep_for(milliseconds("JUDGE_SLOW"));
  if (setting("JUDGE_DONTFORK", "0") == "1") {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(data);
    const uintptr_t begin = at / page * page, end = (at + size + page - 1) / page * page;
    if (madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTFORK) != 0) return kSystemError;
  }
  auto *const known = new Memory{static_cast<char *>(data), size, kind == 2};
  if (known->on_gpu) show_card(data, size);
  one->memory.insert(known);
  *memory = known;
  return kSuccess;
}

int release(void *comm, void *memory) {
  const Turn turn;
  auto *const one = static_cast<Comm *>(comm);
  require(all().count(one) == 1 && one->open && one->memory.erase(static_cast<Memory *>(memory)) == 1,
          "memory that is not registered");
  require(!static_cast<Memory *>(memory)->on_gpu || gpu_in_use() == flushed_gpu(), "a thread that does not use the GPU");
  return kSuccess;
}

int post(Comm *comm, void *data, size_t size, int tag, void *memory, void **request) {
  static Presence own;
  require(request != nullptr && *request == nullptr, "a request in place of none");
  const auto *const known = static_cast<Memory *>(memory);
  require(comm->memory.count(static_cast<Memory *>(memory)) == 1 && static_cast<char *>(data) >= known->data &&
              static_cast<char *>(data) + size <= known->data + known->size,
          "a message outside of registered memory");
  require(size > 0 && size <= INT_MAX && tag == 0, "size or tag of a message");
  while (!comm->requests.empty() && comm->requests.front()->over) comm->requests.pop_front();
  require(comm->requests.size() < kMostRequests, "more requests than a comm has");
  // Now and then it is not taken.
  if (++comm->calls % 5 == 0) return kSuccess;
  if (comm->sends && !read_credits(*comm)) return kSystemError;
  if (comm->sends && !eager() && comm->posted >= comm->credits) return kSuccess;
  auto *const made = new Request{comm, static_cast<char *>(data), size};
  if (known->on_gpu && comm->sends) made->data = card_address(data);
  if (known->on_gpu && setting("JUDGE_FAULT", "") == "touch") static_cast<void>(*static_cast<volatile char *>(data));
  if (known->on_gpu && comm->on_gpu++ == 0) note("messages on GPUs");
  if (known->on_gpu && !comm->sends) made->on_gpu = std::exchange(made->data, new char[size]);
  if (!comm->sends && move(*comm, const_cast<char *>(&kCredit), 1, true) != 1) return kSystemError;
  comm->requests.push_back(made);
  ++comm->posted;
  *request = made;
  return kSuccess;
}

// What has come into memory of a GPU is there when this has ended.
int flush(void *comm, int count, void **data, int *sizes, void **memory, void **request) {
  const Turn turn;
  Comm *const one = check(comm, false);
  require(count == 1 && request != nullptr && *request == nullptr && one->memory.count(static_cast<Memory *>(memory[0])) == 1,
          "arguments of iflush");
  require(gpu_in_use() == flushed_gpu(), "a flush by a thread that does not use the GPU");
  if (fails("iflush")) return kSystemError;
  if (setting("JUDGE_FAULT", "") == "no flush") return kSuccess;
  const auto found = std::find_if(one->unflushed.begin(), one->unflushed.end(), [&](const Request *came) {
    return came->on_gpu == data[0] && came->moved == static_cast<size_t>(sizes[0]);
  });
  require(found != one->unflushed.end(), "a flush of what has not come");
  auto *const made = new Request{one, nullptr, 0};
  made->flushes = *found;
  *request = made;
  one->unflushed.erase(found);
  return kSuccess;
}

int test(void *request, int *done, int *sizes) {
  const Turn turn;
  static Presence own;
  auto *const one = static_cast<Request *>(request);
  require(one != nullptr && !one->over, "test of a request that has ended");
  require(one->comm->open, "test of a request whose comm is closed");
  if (fails("test")) return kSystemError;
  *done = 0;
  if (one->flushes != nullptr) {
    if (++one->comm->calls % 3 != 0) return kSuccess;
    std::memcpy(card_address(one->flushes->on_gpu), one->flushes->data, one->flushes->moved);
    one->over = true;
    *done = 1;
    return kSuccess;
  }
  if (!progress(*one->comm)) {
    if (!one->done) return kSystemError;
  }
  if (one->done && one->comm->sends && std::chrono::steady_clock::now() - one->done_at < milliseconds("JUDGE_ANSWERS"))
    return read_credits(*one->comm) ? kSuccess : kSystemError;
  // Now and then it is told late.
  if (!one->done || ++one->comm->calls % 7 == 0) return kSuccess;
  *done = 1;
  if (sizes != nullptr) *sizes = static_cast<int>(one->moved);
  one->over = true;  // never freed, so that a second test() shows
  if (one->on_gpu != nullptr && !one->comm->sends) one->comm->unflushed.push_back(one);
  return kSuccess;
}

int close_comm(void *comm, bool sends) {
  const Turn turn;
  return shut(check(comm, sends));
}
int close_send(void *comm) { return close_comm(comm, true); }
int close_receive(void *comm) { return close_comm(comm, false); }
int close_listen(void *comm) {
  const Turn turn;
  auto *const one = static_cast<Comm *>(comm);
  require(all().count(one) == 1 && one->open && one->listens, "a comm that does not listen");
  one->open = false;
  if (one->context != nullptr) --one->context->comms;
  close(one->fd);
  return kSuccess;
}

std::vector<int> speeds() {
  std::vector<int> found;
  const std::string text = setting("JUDGE_SPEEDS", "100000");
  for (size_t at = 0; at != std::string::npos; at = text.find(',', at)) {
    if (at > 0) ++at;
    found.push_back(std::atoi(text.c_str() + at));
  }
  return found;
}

int count_devices(int *count) {
  const Turn turn;
  if (fails("devices") || refuses("devices")) return kSystemError;
  *count = refuses("none") ? 0 : static_cast<int>(speeds().size());
  return kSuccess;
}

#include "net_plugin_versions.h"

}  // namespace

extern "C" __attribute__((visibility("default"))) const Net TABLE_NAME = table();
