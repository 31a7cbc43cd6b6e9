// A profiler plugin for NCCL, in the versions that HAS_4, HAS_5 and HAS_6 name. It writes each event to the file
// PROFILER_TEST.PID. With WITH_NCCL it is built with NCCL's headers, else with copies of their declarations.
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#ifdef WITH_NCCL
#include "err.h"
#include "profiler.h"
using Logger = ncclDebugLogger_t;
using Description4 = ncclProfilerEventDescr_v4_t;
using Description5 = ncclProfilerEventDescr_v5_t;
using Description6 = ncclProfilerEventDescr_v6_t;
#else
using Logger = void (*)(int, unsigned long, const char *, int, const char *, ...);
template <class Type>
struct Description {
  Type type;
  void *parentObj;
  int rank;
  union {
    struct {
      bool graphCaptured;
      int groupDepth;
    } groupApi;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      int root;
      void *stream;
      bool graphCaptured;
    } collApi;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      void *stream;
      bool graphCaptured;
    } p2pApi;
    struct {
      uint64_t seqNumber;
      const char *func;
      void const *sendBuff;
      void *recvBuff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char *algo;
      const char *proto;
      void *parentGroup;
    } coll;
    struct {
      const char *func;
      void *buff;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void *parentGroup;
    } p2p;
  };
};
using Description4 = Description<uint8_t>;
using Description5 = Description<uint64_t>;
using Description6 = Description<uint64_t>;
#endif

struct Event {
  int number;
};

static int count = 0;

static void say(const std::string &text) {
  const std::string path = std::string(getenv("PROFILER_TEST")) + "." + std::to_string(getpid());
  FILE *const file = fopen(path.c_str(), "a");
  if (file == nullptr) abort();
  fprintf(file, "%s\n", text.c_str());
  fclose(file);
}

static std::string at(const void *handle) {
  return handle == nullptr ? "-" : std::to_string(static_cast<const Event *>(handle)->number);
}

static int begin(void **context, int *wanted, int version, const char *name, uint64_t id, int nodes, int ranks, int rank,
                 void *logger) {
  const char *const asked = getenv("PROFILER_TEST_MASK");
  *wanted = asked == nullptr ? 0x7fff : atoi(asked);
  *context = reinterpret_cast<void *>(0x1000 + rank);
  if (getenv("PROFILER_TEST_REFUSES") != nullptr) return 3;
  reinterpret_cast<void (*)(int, unsigned long, const char *, int, const char *, ...)>(logger)(
      3, 1, "file", 1, "hello from %s %d", "rank", rank);
  say("init v" + std::to_string(version) + " " + (name == nullptr ? "-" : name) + " " + (id == 0 ? "0" : "id") + " " +
      std::to_string(nodes) + " " + std::to_string(ranks) + " " + std::to_string(rank));
  return 0;
}

template <class D>
static std::string tell(uint64_t type, const D *of) {
  char text[300];
  if (type == 2)
    snprintf(text, sizeof text, "coll %d %s %zu %s %d %s %s", static_cast<int>(of->coll.seqNumber), of->coll.func,
             of->coll.count, of->coll.datatype, of->coll.root, of->coll.algo, of->coll.proto);
  else if (type == 4)
    snprintf(text, sizeof text, "p2p %s %zu %s %d", of->p2p.func, of->p2p.count, of->p2p.datatype, of->p2p.peer);
  else
    snprintf(text, sizeof text, "%s", type == 1 ? "group" : "?");
  return text;
}

template <class D>
static std::string tell_api(uint64_t type, const D *of) {
  char text[300];
  if (type == 256) return "group api " + std::to_string(of->groupApi.groupDepth);
  if (type == 512)
    snprintf(text, sizeof text, "coll api %s %zu %s %d", of->collApi.func, of->collApi.count, of->collApi.datatype,
             of->collApi.root);
  else
    snprintf(text, sizeof text, "p2p api %s %zu %s", of->p2pApi.func, of->p2pApi.count, of->p2pApi.datatype);
  return text;
}

static int started(void *context, void **handle, const std::string &what, int rank, const void *parent) {
  if (context != reinterpret_cast<void *>(0x1000 + rank)) abort();
  auto *const event = new Event{count++};
  *handle = event;
  say("start " + at(event) + " in " + at(parent) + ": " + what);
  return 0;
}

[[maybe_unused]] static int start4(void *context, void **handle, Description4 *of) {
  return started(context, handle, tell(of->type, of), of->rank, of->parentObj);
}
template <class D>
static int start5(void *context, void **handle, D *of) {
  const void *const group = of->type == 2 ? of->coll.parentGroup : of->type == 4 ? of->p2p.parentGroup : nullptr;
  const std::string what = of->type >= 256 ? tell_api(of->type, of) : tell(of->type, of);
  return started(context, handle, what + (group == nullptr ? "" : " of group " + at(group)), of->rank, of->parentObj);
}
static int stop(void *handle) {
  say("stop " + at(handle));
  return 0;
}
static int record(void *handle, int state, void *) {
  say("state " + std::to_string(state) + " of " + at(handle));
  return 0;
}
static int finish(void *context) {
  say("finalize " + std::to_string(reinterpret_cast<uintptr_t>(context) - 0x1000));
  return 0;
}

[[maybe_unused]] static int init4(void **context, int *wanted, const char *name, uint64_t id, int nodes, int ranks, int rank,
                                  Logger log) {
  return begin(context, wanted, 4, name, id, nodes, ranks, rank, reinterpret_cast<void *>(log));
}
template <int V>
static int init5(void **context, uint64_t id, int *wanted, const char *name, int nodes, int ranks, int rank, Logger log) {
  return begin(context, wanted, V, name, id, nodes, ranks, rank, reinterpret_cast<void *>(log));
}

template <class I, class D>
struct Table {
  const char *name;
  I init;
  int (*start)(void *, void **, D *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
};
using Init4 = decltype(&init4);
using Init5 = decltype(&init5<5>);

extern "C" {
#ifdef HAS_4
Table<Init4, Description4> ncclProfiler_v4 = {"test", init4, start4, stop, record, finish};
#endif
#ifdef HAS_5
Table<Init5, Description5> ncclProfiler_v5 = {"test", init5<5>, start5<Description5>, stop, record, finish};
#endif
#ifdef HAS_6
Table<Init5, Description6> ncclProfiler_v6 = {"test", init5<6>, start5<Description6>, stop, record, finish};
#endif
}
