// The host functions of NCCL's device API. Kernels of a program cannot use a communicator that collc serves, because its
// windows are NULL. The functions that prepare such kernels fail with a text that says so.
#include "api/api.h"

using namespace collc;

// Types that are passed by value, as in NCCL's headers.
struct Team {
  int nranks, rank, stride;
};
struct MultimemHandle {
  void *base;
};

extern "C" {

COLLC_ONLY_REAL(DevCommCreate, (ncclComm_t comm, const void *requirements, void *made), real, requirements, made);
COLLC_ONLY_REAL(DevCommDestroy, (ncclComm_t comm, const void *device), real, device);
COLLC_ONLY_REAL(GinBarrierCreateRequirement, (ncclComm_t comm, Team team, int barriers, void *handle, void *requirement), real,
                team, barriers, handle, requirement);

// Requirements count resources for ncclDevCommCreate and contain no communicator, so the real NCCL fills them in.
COLLC_PASSED_ON(LsaBarrierCreateRequirement, (Team team, int barriers, void *handle, void *requirement), team, barriers, handle,
                requirement);
COLLC_PASSED_ON(LLA2ACreateRequirement, (int blocks, int slots, void *handle, void *requirement), blocks, slots, handle,
                requirement);
COLLC_PASSED_ON(GinOutboxCreateRequirement, (int blocks, int size_log2, void *handle, void *requirement), blocks, size_log2,
                handle, requirement);
COLLC_PASSED_ON(GinInboxA2ACreateRequirement, (Team peers, int blocks, int size_log2, void *handle, void *requirement), peers,
                blocks, size_log2, handle, requirement);

// Returns 0 slots without the real NCCL, because this function has no other way to report an error.
COLLC_API int pncclLLA2ACalcSlots(int elements, int element_bytes) {
  int slots = 0;
  guarded("ncclLLA2ACalcSlots", [&]() -> Status {
    void *const theirs = find_real("ncclLLA2ACalcSlots");
    if (theirs == nullptr) return fail(ncclInvalidUsage, "%s", describe_missing().c_str());
    slots = reinterpret_cast<int (*)(int, int)>(theirs)(elements, element_bytes);
    return {};
  });
  return slots;
}
COLLC_ALIAS(int, LLA2ACalcSlots, (int, int));

// Only the real NCCL makes windows that are not NULL.
#define COLLC_OF_WINDOW(name, parameters, ...)                                                          \
  COLLC_API ncclResult_t pnccl##name parameters {                                                       \
    return guarded("nccl" #name, [&]() -> Status {                                                      \
      if (window == nullptr) return fail(ncclInvalidUsage, "not supported: windows of collc are NULL"); \
      return forwarded(call_real(pnccl##name, "nccl" #name, __VA_ARGS__));                              \
    });                                                                                                 \
  }                                                                                                     \
  COLLC_ALIAS(ncclResult_t, name, parameters)
COLLC_OF_WINDOW(GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int rank, void **pointer), window, offset, rank,
                pointer);
COLLC_OF_WINDOW(GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **pointer), window, offset, peer,
                pointer);
COLLC_OF_WINDOW(GetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void **pointer), window, offset, pointer);
COLLC_OF_WINDOW(GetMultimemDevicePointer, (ncclWindow_t window, size_t offset, MultimemHandle multimem, void **pointer), window,
                offset, multimem, pointer);
COLLC_OF_WINDOW(GetMultimemDeviceLeInfo, (ncclWindow_t window, size_t offset, uint32_t *le, size_t *le_offset), window, offset,
                le, le_offset);
COLLC_OF_WINDOW(GetCftDeviceLeInfo, (ncclWindow_t window, size_t offset, int peer, Team team, uint32_t *le, size_t *le_offset),
                window, offset, peer, team, le, le_offset);
COLLC_OF_WINDOW(GetPeerDeviceLeInfo, (ncclWindow_t window, size_t offset, int peer, uint32_t *le, size_t *le_offset), window,
                offset, peer, le, le_offset);

#define COLLC_TEAM(name, of_ours, parameters, ...)                                                    \
  COLLC_API Team pnccl##name parameters {                                                             \
    Lookup found;                                                                                     \
    if (!found.find(comm).ok()) return {0, 0, 1};                                                     \
    const ncclComm_t real = found->real();                                                            \
    void *theirs = real != nullptr ? find_real("nccl" #name) : nullptr;                               \
    if (theirs != nullptr) return reinterpret_cast<decltype(&pnccl##name)>(theirs)(real __VA_ARGS__); \
    [[maybe_unused]] const int nranks = static_cast<int>(found->nranks());                            \
    [[maybe_unused]] const int rank = static_cast<int>(found->rank());                                \
    return of_ours;                                                                                   \
  }                                                                                                   \
  COLLC_ALIAS(Team, name, parameters)
COLLC_TEAM(TeamWorld, (Team{nranks, rank, 1}), (ncclComm_t comm));
COLLC_TEAM(TeamRail, (Team{nranks, rank, 1}), (ncclComm_t comm));
// Peers cannot load and store collc's memory directly, so every rank is a team of one.
COLLC_TEAM(TeamLsa, (Team{1, 0, 1}), (ncclComm_t comm));
COLLC_TEAM(TeamCft, (Team{1, 0, 1}), (ncclComm_t comm, [[maybe_unused]] int mode), , mode);
COLLC_TEAM(TeamCftMultimem, (Team{1, 0, 1}), (ncclComm_t comm));

#define COLLC_TEAM_RANK(name, of_ours)                                                                         \
  COLLC_API int pnccl##name(ncclComm_t comm, Team team, int rank) {                                            \
    Lookup found;                                                                                              \
    if (!found.find(comm).ok()) return -1;                                                                     \
    void *theirs = found->real() != nullptr ? find_real("nccl" #name) : nullptr;                               \
    if (theirs != nullptr) return reinterpret_cast<decltype(&pnccl##name)>(theirs)(found->real(), team, rank); \
    const int world = static_cast<int>(found->rank()) + (rank - team.rank) * team.stride;                      \
    return of_ours;                                                                                            \
  }                                                                                                            \
  COLLC_ALIAS(int, name, (ncclComm_t, Team, int))
COLLC_TEAM_RANK(TeamRankToWorld, world);
COLLC_TEAM_RANK(TeamRankToLsa, world == static_cast<int>(found->rank()) ? 0 : -1);

}  // extern "C"
