// Loads a tuner plugin and calls it as NCCL does, through NCCL's structs.
//   tuner_driver PLUGIN VERSION   then lines "ranks nodes function bytes algorithms protocols cost..." on standard input.
// Each answers with the table after the call and the channels; the plugin's log goes to standard error.
#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nccl_tuner.h"

static_assert(NCCL_ALGO_TREE == 0 && NCCL_ALGO_RING == 1 && NCCL_ALGO_COLLNET_DIRECT == 2);
static_assert(NCCL_ALGO_COLLNET_CHAIN == 3 && NCCL_ALGO_NVLS == 4 && NCCL_ALGO_NVLS_TREE == 5 && NCCL_ALGO_PAT == 6);
static_assert(NCCL_PROTO_LL == 0 && NCCL_PROTO_LL128 == 1 && NCCL_PROTO_SIMPLE == 2);
static_assert(ncclFuncBroadcast == 0 && ncclFuncReduce == 1 && ncclFuncAllGather == 2);
static_assert(ncclFuncReduceScatter == 3 && ncclFuncAllReduce == 4 && NCCL_LOG_INFO == 3);

namespace {

void log_line(ncclDebugLogLevel, unsigned long, const char *, int, const char *format, ...) {
  va_list list;
  va_start(list, format);
  std::vfprintf(stderr, format, list);
  std::fputc('\n', stderr);
  va_end(list);
}

struct Call {
  size_t ranks, nodes, bytes;
  int function, algorithms, protocols;
  std::vector<float> costs;
  int channels = 0;
};

void check(ncclResult_t result) {
  if (result != ncclSuccess) std::exit(3);
}

template <class Tuner>
void serve(const Tuner &tuner, Call &call) {
  void *context = nullptr;
  ncclNvlDomainInfo_v5_t domains{};
  static ncclTunerConstants_v5_t constants{};
  const auto function = static_cast<ncclFunc_t>(call.function);
  auto **costs = reinterpret_cast<float **>(call.costs.data());
  if constexpr (std::is_same_v<Tuner, ncclTuner_v3_t> || std::is_same_v<Tuner, ncclTuner_v4_t>) {
    check(tuner.init(call.ranks, call.nodes, log_line, &context));
  } else {
    check(tuner.init(&context, 0x1234, call.ranks, call.nodes, log_line, &domains, &constants));
  }
  if constexpr (std::is_same_v<Tuner, ncclTuner_v3_t>) {
    check(tuner.getCollInfo(context, function, call.bytes, 1, costs, call.algorithms, call.protocols, &call.channels));
  } else {
    check(tuner.getCollInfo(context, function, call.bytes, 1, costs, call.algorithms, call.protocols, 0, &call.channels));
  }
  if constexpr (std::is_same_v<Tuner, ncclTuner_v3_t> || std::is_same_v<Tuner, ncclTuner_v4_t>) {
    check(tuner.destroy(context));
  } else {
    check(tuner.finalize(context));
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 4;
  }
  const std::string version = argv[2];
  const void *symbol = dlsym(plugin, ("ncclTunerPlugin_v" + version).c_str());
  if (symbol == nullptr) return 5;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    Call call;
    words >> call.ranks >> call.nodes >> call.function >> call.bytes >> call.algorithms >> call.protocols;
    for (float cost; words >> cost;) call.costs.push_back(cost);
    if (call.costs.size() != static_cast<size_t>(call.algorithms) * static_cast<size_t>(call.protocols)) return 6;
    if (version == "3") serve(*static_cast<const ncclTuner_v3_t *>(symbol), call);
    if (version == "4") serve(*static_cast<const ncclTuner_v4_t *>(symbol), call);
    if (version == "5") serve(*static_cast<const ncclTuner_v5_t *>(symbol), call);
    if (version == "6") {
      const auto &newest = *static_cast<const ncclTuner_v6_t *>(symbol);
      if (newest.getChunkSize != nullptr) return 7;
      serve(newest, call);
    }
    std::cout << call.channels;
    for (const float cost : call.costs) std::cout << ' ' << cost;
    std::cout << '\n';
  }
  return dlclose(plugin);
}
