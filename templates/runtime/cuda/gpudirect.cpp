#include "cuda/gpudirect.h"

#include <cstdio>
#include <cstring>

#include "base/environment.h"
#include "base/log.h"
#include "cuda/wire_halves.h"

namespace collc::cuda {
namespace {

// What a rank tells of its memory for slots.
struct CardMemoryTold {
  unsigned char process[16];
  Address at;
  uint64_t bytes;  // 0: it has none
};

bool has_attribute(const Device &device, int attribute) {
  int value = 0;
  return driver().device_attribute(&value, attribute, device.number) == 0 && value != 0;
}

uint32_t first_here(const Placement &placement) {
  uint32_t first = 0;
  while (!placement.is_here(first)) ++first;
  return first;
}

char *pointer(Address at) { return reinterpret_cast<char *>(at); }

// In the process of the courier, the memory of all ranks here.
Status gather(const RankContext &context, const Device &device, const HalvesLayout &layout,
              const std::vector<CardMemoryTold> &told, const std::vector<Descriptor> &files, CardMemory *memory,
              DeviceSlots *devices) {
  const Placement &placement = context.placement;
  std::map<uint32_t, char *> begins;
  for (uint32_t r = 0; r < context.nranks; ++r) {
    if (!placement.is_here(r) || told[r].bytes == 0) continue;  // whoever has none says why
    VirtualMemory mapped = {told[r].at, told[r].bytes};
    if (std::memcmp(told[r].process, process_token(), sizeof told[r].process) != 0) {
      if (!files[r] || !map_virtual(device, files[r].get(), told[r].bytes, &mapped))
        return fail(ncclUnhandledCudaError, "the memory of rank %u cannot be mapped", r);
      memory->add(mapped);
    }
    begins[r] = pointer(mapped.at);
    devices->parts.push_back({begins[r], told[r].bytes});
  }
  const auto place = [&](const CardSlots::Place &one) {
    const auto begin = begins.find(one.rank);
    return begin == begins.end() ? nullptr : begin->second + one.at;
  };
  devices->fifos.resize(placement.allocation->nfifos);
  for (uint32_t f = 0; f < devices->fifos.size(); ++f)
    if (const CardSlots::Place *const one = layout.on_gpus.fifo(f)) devices->fifos[f] = place(*one);
  devices->queues.resize(size_t{context.nranks} * context.nranks);
  for (uint32_t from = 0; from < context.nranks; ++from)
    for (uint32_t to = 0; to < context.nranks; ++to)
      if (placement.is_here(from) != placement.is_here(to))
        devices->queues[from * context.nranks + to] = place(layout.on_gpus.queue(from, to));
  return {};
}

// Collective among the ranks of a communicator.
Status offer(const RankContext &context, const Device &device, const std::shared_ptr<CardMemory> &memory, VirtualMemory *own,
             DeviceSlots *devices) {
  const HalvesLayout layout(*context.tables, context.placement);
  Descriptor file;
  Status mine = make_virtual(device, layout.on_gpus.bytes(context.rank), own, &file, true);
  if (own->bytes != 0) memory->add(*own);
  if (!mine.ok()) {
    file.reset();
    *own = {};
  }
  CardMemoryTold told = {};
  std::memcpy(told.process, process_token(), sizeof told.process);
  told.at = own->at;
  told.bytes = own->bytes;
  std::vector<CardMemoryTold> all;
  COLLC_RETURN_IF_FAILED(exchange(context.exchange, told, &all));
  std::vector<Descriptor> files;
  COLLC_RETURN_IF_FAILED(exchange_descriptors(context, file, &files));
  devices->owner = memory;
  devices->largest = std::max(layout.fifos.slot_bytes(), layout.transfers.slot_bytes());
  devices->enter = [in = device.context] { driver().context_set(in); };
  if (mine.ok() && context.rank == first_here(context.placement))
    mine = gather(context, device, layout, all, files, memory.get(), devices);
  if (!mine.ok()) devices->refused = mine.text();
  return {};
}

}  // namespace

Status read_gpudirect(const Device &device, RankSettings *mine) {
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_GPUDIRECT", 1, &mine->wants_gpudirect));
  const char *why = "";
  if (mine->wants_gpudirect == 0)
    why = "COLLC_GPUDIRECT=1 is not set";
  else if (!has_attribute(device, kGpuDirect))
    why = "its GPU has no GPUDirect RDMA";
  else if (!has_descriptors(device) || !has_attribute(device, kVirtualMemoryForCards))
    why = "its GPU has no GPUDirect RDMA for memory that processes share";
  std::snprintf(mine->no_gpudirect, sizeof mine->no_gpudirect, "%s", why);
  return {};
}

bool tries_gpudirect(const RankContext &context, const std::vector<RankSettings> &settings) {
  bool wanted = false;
  for (const RankSettings &one : settings) wanted |= one.wants_gpudirect != 0;
  if (!wanted || context.placement.machine.empty()) return false;
  for (size_t r = 0; r < settings.size(); ++r) {
    if (settings[r].no_gpudirect[0] == '\0') continue;
    if (context.rank == 0) log(LogLevel::kInfo, "no GPUDirect: rank %zu: %.79s", r, settings[r].no_gpudirect);
    return false;
  }
  return true;
}

Status join_by_cards(const RankContext &context, const Device &device, World &world, bool tries, VirtualMemory *own) {
  if (!tries) return join_halves(context);
  DeviceSlots devices;
  COLLC_RETURN_IF_FAILED(offer(context, device, world.card_memory(), own, &devices));
  COLLC_RETURN_IF_FAILED(join_halves(context, &devices));
  if (!devices.refused.empty()) {
    *own = {};
    world.drop_card_memory();
  }
  if (context.rank != 0) return {};
  if (devices.refused.empty())
    log(LogLevel::kInfo, "GPUDirect: slots between machines are in memory of the GPUs");
  else
    log(LogLevel::kInfo, "no GPUDirect: %s", devices.refused.c_str());
  return {};
}

}  // namespace collc::cuda
