// Reads sysfs about NICs: the network interfaces of RDMA ports, and the distance of a NIC from GPUs. Functions only read
// files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "collc/tables.h"

namespace collc {

constexpr char kSysFolder[] = "/sys";

// Returns the names in a folder, sorted, without those that start with a dot; nothing if there is no such folder.
std::vector<std::string> list_folder(const std::string &folder);

// A port of an RDMA device, such as "mlx5_0:1", and its network interface; if this is part of a bond, the bond's interface.
struct RdmaInterface {
  std::string port, interface;
};

// Returns all of this machine, in the order of devices.
std::vector<RdmaInterface> find_rdma_interfaces(const std::string &sys);

// Returns the network interfaces of a NIC of the library's topology: by its bus id, or else by its name (of the interface or
// of the RDMA device); nothing if the NIC is not here. Several interfaces may have the bus id: of both ports, or of virtual
// functions. Then it returns the interface with the NIC's name, or else all: first the ones that are up, in the order of
// ports. Interfaces of a bond are replaced by the bond's interface.
std::vector<std::string> find_interfaces(const Card &card, const std::string &sys);

// Returns the distance of the NIC of an interface from the nearest of some GPUs: steps in the PCIe tree, plus 100 if they are
// under different host bridges of one memory node, or 200 if under different memory nodes; kUnknownDistance if sysfs does not
// show it. `gpus`: bus ids as in GpuPlace.
constexpr uint32_t kUnknownDistance = 1000;
uint32_t distance_from_gpus(const std::string &interface, const std::vector<uint64_t> &gpus, const std::string &sys);

}  // namespace collc
