// What differs from version to version of NCCL's network plugins, for net_plugin.cpp, by NCCL's headers net_v8.h to net_v12.h.
#pragma once

#define TABLE_OF(version) ncclNetPlugin_v##version
#define TABLE_OF_VALUE(version) TABLE_OF(version)
#define TABLE_NAME TABLE_OF_VALUE(VERSION)

using Logger = void (*)(int, unsigned long, const char *, int, const char *, ...);
using Profiler = int (*)(void **, int, void *, int64_t, void *);

struct CommConfig {
  int trafficClass;
};

struct Properties {
  char *name;
  char *pciPath;
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
#if VERSION >= 9
  int forceFlush;
#endif
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
#if VERSION >= 9
  struct {
    int ndevs;
    int devs[VERSION >= 12 ? 8 : 4];
  } vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
#endif
#if VERSION >= 11
  int maxMultiRequestSize;
#endif
#if VERSION >= 12
  int16_t railId;
  int16_t planeId;
#endif
};

int properties(int device, Properties *told) {
  const Turn turn;
  require(device >= 0 && device < static_cast<int>(speeds().size()), "a device that is not there");
  if (fails("getProperties")) return kSystemError;
  static char names[8][64];
  std::snprintf(names[device], sizeof names[device], "judge%d", device);
  *told = Properties();
  told->name = names[device];
  told->guid = static_cast<uint64_t>(device);
  told->ptrSupport = std::atoi(setting("JUDGE_MEMORY", "1").c_str());
  told->speed = speeds()[static_cast<size_t>(device)];
  told->maxComms = 1024;
  told->maxRecvs = 1;
#if VERSION >= 9
  told->vProps.ndevs = 1;
  told->vProps.devs[0] = device;
  told->maxP2pBytes = static_cast<size_t>(std::atol(setting("JUDGE_MOST", "1073741824").c_str()));
  told->maxCollBytes = told->maxP2pBytes;
#endif
#if VERSION >= 11
  told->maxMultiRequestSize = 1;
#endif
#if VERSION >= 12
  told->railId = told->planeId = -1;
#endif
  return kSuccess;
}

int begun = 0, contexts = 0;

// Before version 11 a process begins once.
int begin(Logger log, bool once) {
  require(log != nullptr && (!once || begun == 0), "init twice in a process, or without a logger");
  if (setting("JUDGE_STARTED", "0") == "1") return kSystemError;
  const bool ended = setting("JUDGE_ENDS", "0") == "1" && begun > 0 && contexts == 0;
  if (fails("init") || refuses("init") || ended) {
    log(2, ~0UL, __FILE__, __LINE__, "%s cannot start", "the judge");
    return kSystemError;
  }
  ++begun;
  setenv("NCCL_PROTO", "simple", 1);  // as aws-ofi-nccl does
  log(3, 16, __FILE__, __LINE__, "version %d of %s", VERSION, "the judge");
  note("start of version " + std::to_string(VERSION));
  return kSuccess;
}

#if VERSION >= 11
int init(void **context, uint64_t communicator, CommConfig *config, Logger log, Profiler profile) {
  const Turn turn;
  require(context != nullptr && communicator != 0 && config != nullptr && config->trafficClass == -1 && profile != nullptr,
          "arguments of init");
  const int result = begin(log, false);
  if (result != kSuccess) return result;
  *context = new Context;
  ++contexts;
  return kSuccess;
}
Context *open_context(void *context) {
  auto *const one = static_cast<Context *>(context);
  require(one != nullptr && one->open, "a context that is not open");
  return one;
}
int finalize(void *context) {
  const Turn turn;
  require(open_context(context)->comms == 0, "comms are open when their context is closed");
  static_cast<Context *>(context)->open = false;
  --contexts;
  note("finalize");
  return kSuccess;
}
int do_listen(void *context, int device, void *handle, void **comm) {
  return listen_at(open_context(context), device, handle, comm);
}
int do_connect(void *context, int, void *handle, void **comm, void **on_device) {
  return connect_to(open_context(context), handle, comm, on_device);
}
#else
#if VERSION >= 10
int init(Logger log, Profiler profile) {
  const Turn turn;
  require(profile != nullptr, "init without a profiler's function");
  return begin(log, true);
}
int do_connect(int, CommConfig *config, void *handle, void **comm, void **on_device) {
  require(config != nullptr && config->trafficClass == -1, "the configuration of a comm");
  return connect_to(nullptr, handle, comm, on_device);
}
#else
int init(Logger log) {
  const Turn turn;
  return begin(log, true);
}
int do_connect(int, void *handle, void **comm, void **on_device) { return connect_to(nullptr, handle, comm, on_device); }
#endif
int do_listen(int device, void *handle, void **comm) { return listen_at(nullptr, device, handle, comm); }
#endif

#if VERSION >= 9
using Size = size_t;
#else
using Size = int;
#endif

int do_send(void *comm, void *data, Size size, int tag, void *memory,
#if VERSION >= 10
            void *,
#endif
            void **request) {
  const Turn turn;
  if (fails("isend")) return kSystemError;
  return post(check(comm, true), data, static_cast<size_t>(size), tag, memory, request);
}

int do_receive(void *comm, int count, void **data, Size *sizes, int *tags, void **memory,
#if VERSION >= 10
               void **events,
#endif
               void **request) {
  const Turn turn;
  require(count == 1, "as many receives as one comm has at once");
#if VERSION >= 10
  require(events != nullptr, "no room for events");
#endif
  if (fails("irecv")) return kSystemError;
  return post(check(comm, false), data[0], static_cast<size_t>(sizes[0]), tags[0], memory[0], request);
}

struct Net {
  const char *name;
  decltype(&init) init_;
  int (*devices)(int *);
  int (*getProperties)(int, Properties *);
  decltype(&do_listen) listen_;
  decltype(&do_connect) connect_;
  int (*accept_)(void *, void **, void **);
  int (*regMr)(void *, void *, size_t, int, void **);
  int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
  int (*deregMr)(void *, void *);
  decltype(&do_send) isend;
  decltype(&do_receive) irecv;
  int (*iflush)(void *, int, void **, int *, void **, void **);
  int (*test_)(void *, int *, int *);
  int (*closeSend)(void *);
  int (*closeRecv)(void *);
  int (*closeListen)(void *);
  int (*getDeviceMr)(void *, void *, void **);
  int (*irecvConsumed)(void *, int, void *);
#if VERSION >= 9
  int (*makeVDevice)(int *, void *);
#endif
#if VERSION >= 11
  int (*finalize_)(void *);
  int (*setNetAttr)(void *, void *);
#endif
};

const char *own_name() {
  static const std::string *const name = new std::string(setting("JUDGE_NAME", "Judge"));
  return name->c_str();
}

Net table() {
  Net net = {};
  net.name = own_name();
  net.init_ = init;
  net.devices = count_devices;
  net.getProperties = properties;
  net.listen_ = do_listen;
  net.connect_ = do_connect;
  net.accept_ = accept_at;
  net.regMr = enroll;
  net.deregMr = release;
  net.isend = do_send;
  net.irecv = do_receive;
  net.iflush = flush;
  net.test_ = test;
  net.closeSend = close_send;
  net.closeRecv = close_receive;
  net.closeListen = close_listen;
#if VERSION >= 11
  net.finalize_ = finalize;
#endif
  return net;
}
