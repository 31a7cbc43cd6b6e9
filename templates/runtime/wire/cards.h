// What sysfs tells of network cards: which interface goes over which RDMA port, and how far a card is from GPUs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "collc/tables.h"

namespace collc {

constexpr char kSysFolder[] = "/sys";

// What lies in a folder, sorted by name; nothing if there is none.
std::vector<std::string> list_folder(const std::string &folder);

// A port of an RDMA device, "mlx5_0:1", and the network interface that goes over it: that above it, where several are bonded.
struct RdmaInterface {
  std::string port, interface;
};

// In the order of devices.
std::vector<RdmaInterface> find_rdma_interfaces(const std::string &sys);

// The network interfaces of a card of the library's topology: by its bus id, else by the name that it or its RDMA device has; none
// if it is not here. Where several have the bus id, as those of both ports of a card, or those that stand for virtual functions, that
// of the card's name, else all of them: those that are up first, and in the order of ports.
std::vector<std::string> find_interfaces(const Card &card, const std::string &sys);

// How far the card of an interface is from the nearest of some GPUs: steps in the tree of PCIe, more over host bridges, still more
// over memories; kFarUnknown where that cannot be told. `gpus`: bus ids as GpuPlace has them.
constexpr uint32_t kFarUnknown = 1000;
uint32_t far_from_gpus(const std::string &interface, const std::vector<uint64_t> &gpus, const std::string &sys);

}  // namespace collc
