// The operators of ncclRedOpCreatePreMulSum of one communicator.
//
// Owner: Communicator. Threads: any; a mutex guards the operators. No call blocks.
#pragma once
#include <cstring>
#include <mutex>
#include <vector>

#include "base/element.h"
#include "plan/call.h"

namespace collc {

class Scalings {
 public:
  // Returns a new handle, from ncclNumOps up. `immediate`: the factor is read now, otherwise when a call uses it.
  ncclRedOp_t add(const void *factor, ncclDataType_t type, bool immediate) {
    Scaling scaling = {};
    scaling.is_used = true;
    scaling.is_immediate = immediate;
    scaling.type = type;
    scaling.address = factor;
    if (immediate) std::memcpy(scaling.value, factor, element_bytes(type));
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t at = 0;
    while (at < all_.size() && all_[at].is_used) ++at;
    if (at == all_.size()) all_.emplace_back();
    all_[at] = scaling;
    return static_cast<ncclRedOp_t>(ncclNumOps + at);
  }

  Status remove(ncclRedOp_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Scaling *scaling = nullptr;
    COLLC_RETURN_IF_FAILED(find(handle, &scaling));
    scaling->is_used = false;
    return {};
  }

  // Writes the operation of a call of a type. `reads_factors`: kernels read a factor that is not immediate from memory;
  // otherwise it is read here.
  Status apply(ncclRedOp_t handle, ncclDataType_t type, bool reads_factors, Operation *operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Scaling *scaling = nullptr;
    COLLC_RETURN_IF_FAILED(find(handle, &scaling));
    if (scaling->type != type)
      return fail(ncclInvalidArgument, "reduction %d was made for type %d, not %d", static_cast<int>(handle),
                  static_cast<int>(scaling->type), static_cast<int>(type));
    operation->kind = ncclSum;
    operation->has_scale = true;
    if (!scaling->is_immediate && reads_factors)
      operation->scale_address = scaling->address;
    else
      std::memcpy(operation->scale, scaling->is_immediate ? scaling->value : scaling->address, element_bytes(type));
    return {};
  }

 private:
  struct Scaling {
    bool is_used;
    bool is_immediate;
    ncclDataType_t type;
    unsigned char value[8];
    const void *address;
  };

  Status find(ncclRedOp_t handle, Scaling **scaling) {
    const size_t at = static_cast<size_t>(handle) - ncclNumOps;
    if (handle < ncclNumOps || at >= all_.size() || !all_[at].is_used)
      return fail(ncclInvalidArgument, "reduction %d does not exist", static_cast<int>(handle));
    *scaling = &all_[at];
    return {};
  }

  std::mutex mutex_;
  std::vector<Scaling> all_;  // by handle
};

}  // namespace collc
