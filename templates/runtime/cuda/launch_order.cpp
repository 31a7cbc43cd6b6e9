#include "cuda/launch_order.h"

namespace collc::cuda {
namespace {

constexpr int kLaunchEventsSince = 12030;  // CUDA 12.3

}  // namespace

Status launch_grid(const Grid &grid, Stream stream, void **arguments, const char *what) {
  const Driver &cu = driver();
  const uint32_t shared = grid.shared_bytes;
  return check(grid.is_cooperative
                   ? cu.launch_cooperative(grid.kernel, grid.blocks, 1, 1, grid.threads, 1, 1, shared, stream, arguments)
                   : cu.launch(grid.kernel, grid.blocks, 1, 1, grid.threads, 1, 1, shared, stream, arguments, nullptr),
               what);
}

Status LaunchOrder::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (begun_ != nullptr) return {};
  const Driver &cu = driver();
  int version = 0;
  COLLC_RETURN_IF_FAILED(check(cu.driver_version(&version), "asking for the driver's version"));
  says_begin_ = cu.launch_with != nullptr && version >= kLaunchEventsSince;
  COLLC_RETURN_IF_FAILED(calls_.begin());
  return check(cu.event_create(&begun_, kEventDisableTiming), "making an event");
}

Status LaunchOrder::launch(const Grid &grid, Stream stream, const StreamPlace &place, void **arguments, const char *what) {
  const std::lock_guard<std::mutex> lock(mutex_);  // threads issue launches in one order, too
  // NCCL orders whole calls in graphs as well: events of launches do not work in captures.
  if (!says_begin_ || place.capture != 0 || calls_.is_in_graph()) {
    COLLC_RETURN_IF_FAILED(calls_.follow(stream, place));
    COLLC_RETURN_IF_FAILED(launch_grid(grid, stream, arguments, what));
  } else {
    COLLC_RETURN_IF_FAILED(launch_behind_the_begin(grid, stream, place.id, arguments, what));
  }
  return calls_.note(stream, place);  // for the first graph to come
}

Status LaunchOrder::launch_behind_the_begin(const Grid &grid, Stream stream, uint64_t id, void **arguments, const char *what) {
  const Driver &cu = driver();
  const bool is_behind = id != CallOrder::kUnknownStream && id == latest_stream_;
  if (any_began_so_ && !is_behind) COLLC_RETURN_IF_FAILED(check(cu.stream_wait(stream, begun_, 0), "ordering launches"));
  LaunchAttribute attributes[2] = {};
  attributes[0].number = kLaunchCompletionEvent;
  attributes[0].value.event = begun_;
  attributes[1].number = kCooperative;
  attributes[1].value.cooperative = 1;
  LaunchConfig config = {};
  config.grid[0] = grid.blocks;
  config.block[0] = grid.threads;
  config.grid[1] = config.grid[2] = config.block[1] = config.block[2] = 1;
  config.shared_bytes = grid.shared_bytes;
  config.stream = stream;
  config.attributes = attributes;
  config.nattributes = grid.is_cooperative ? 2 : 1;
  COLLC_RETURN_IF_FAILED(check(cu.launch_with(&config, grid.kernel, arguments, nullptr), what));
  any_began_so_ = true;
  latest_stream_ = id;
  return {};
}

}  // namespace collc::cuda
