// Loads an execution plan for every rank with MSCCL++'s own loader: FILE RANKS BYTES-IN BYTES-OUT.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "execution_plan.hpp"

// Only names of errors are asked for, and none happens.
extern "C" const char *cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
extern "C" CUresult cuGetErrorString(CUresult, const char **text) {
  *text = "an error of CUDA";
  return CUDA_SUCCESS;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int ranks = std::atoi(argv[2]);
  const size_t in = std::strtoull(argv[3], nullptr, 10), out = std::strtoull(argv[4], nullptr, 10);
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      mscclpp::ExecutionPlan::Impl plan(argv[1], rank);
      plan.loadExecutionPlan(in, out, 0, 0);
      size_t most = 0;
      for (const auto &operations : plan.operations) most = std::max(most, operations.size());
      // Checks that the executor makes later, or not at all.
      if (most > mscclpp::MAX_OPERATION) return 3;
      if (!plan.getUnpairedChannelInfos(ranks, mscclpp::ChannelType::MEMORY).empty()) return 4;
      for (const auto &channels : plan.threadblockMemoryChannels)
        if (channels.size() > mscclpp::MAX_CHANNEL) return 5;
      std::printf("%d %zu\n", plan.getThreadblockCount(), plan.calScratchBufferSize(in, out));
    }
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
