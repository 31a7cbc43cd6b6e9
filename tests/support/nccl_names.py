"""The names that NCCL exports."""

from __future__ import annotations

# Every function that libnccl.so.2 of NCCL 2.32.3 exports as ncclNAME. All but INTERNAL are exported as pncclNAME too.
_NAMES = """
AllGather AllGatherConfig AllReduce AllReduceConfig AlltoAll AlltoAllConfig Bcast Broadcast BroadcastConfig
CommAbort CommCount CommCuDevice CommDeregister CommDestroy CommFinalize CommGetAsyncError CommGetUniqueId CommGrow
CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommMemStats CommQueryProperties CommRegister
CommResume CommRevoke CommShrink CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister
DevCommCreate DevCommDestroy Gather GatherConfig GetCftDeviceLeInfo GetErrorString GetLastError GetLsaDevicePointer
GetLsaMultimemDevicePointer GetMultimemDeviceLeInfo GetMultimemDevicePointer GetPeerDeviceLeInfo
GetPeerDevicePointer GetUniqueId GetVersion GinBarrierCreateRequirement GinInboxA2ACreateRequirement
GinOutboxCreateRequirement GroupEnd GroupSimulateEnd GroupStart LLA2ACalcSlots LLA2ACreateRequirement
LsaBarrierCreateRequirement MemAlloc MemFree ParamBind ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16
ParamGetI32 ParamGetI64 ParamGetI8 ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 ParamGetU64 ParamGetU8
PutSignal Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceConfig ReduceScatter ReduceScatterConfig
ResetDebugInit ResetDebugInitInternal Scatter ScatterConfig Send SetEncryption Signal TeamCft TeamCftMultimem
TeamLsa TeamRail TeamRankToLsa TeamRankToWorld TeamWorld WaitSignal WinGetUserPtr
"""
OF_NCCL = _NAMES.split()
INTERNAL = "ResetDebugInitInternal"


def nccl_exports() -> dict[str, str]:
    """The symbols that NCCL 2.32.3 exports, with their binding: nccl* are weak, so that tools can wrap them."""
    weak = {f"nccl{name}": "STB_WEAK" for name in OF_NCCL if name != INTERNAL}
    return weak | {f"p{name}": "STB_GLOBAL" for name in weak} | {f"nccl{INTERNAL}": "STB_GLOBAL"}
