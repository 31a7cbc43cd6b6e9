#include "cuda/staged_copies.h"

#include <algorithm>

namespace collc::cuda {
namespace {

constexpr size_t kMostOperations = 255;   // of one call of the driver

// A word for the wait of a stream: bits for the slot and the peers. A look of the watcher marks the word, and the stream's next
// step removes the mark, so the watcher can distinguish the same wait from a later wait of the same kind.
constexpr uint32_t kSlotAt = 0, kWhichAt = 4, kRankAt = 6, kSeen = uint32_t{1} << 31;

}  // namespace

struct StagedCopies::Piece {
  const Call &call;
  uint64_t at, bytes;  // of each block
  uint32_t slot;

  Address input() const { return address(call.input) + at; }
  Address output() const { return address(call.output) + at; }
  uint32_t root() const { return static_cast<uint32_t>(call.root); }
};

// Steps of one piece on a stream, up to the first that fails. What comes between two copies is one call of the driver.
class StagedCopies::Steps {
 public:
  Steps(const StagedCopies &copies, uint32_t slot, Stream stream) : copies_(copies), slot_(slot), stream_(stream) {}

  Address slot(uint32_t rank) const { return copies_.memory_.staging[rank] + slot_ * copies_.memory_.piece_bytes; }

  // Waits for a step of peers, and takes back their words.
  void wait(CopyStep step, const Peers &peers) {
    const std::vector<uint32_t> ranks = copies_.list(peers);
    if (ranks.empty()) return;
    const Address waits = copies_.memory_.words_at + copies_.layout_.waits(copies_.rank_, step);
    write(waits, slot_ << kSlotAt | static_cast<uint32_t>(peers.which) << kWhichAt | peers.rank << kRankAt);
    for (const uint32_t peer : ranks)
      operations_.push_back({kWaitValue64, word(copies_.rank_, step, peer), kToldOrReleased, kWaitAnd, 0, 0});
    for (const uint32_t peer : ranks) write(word(copies_.rank_, step, peer), 0);
    write(waits, 0);
  }
  void tell(CopyStep step, const Peers &peers) {
    for (const uint32_t peer : copies_.list(peers)) write(word(peer, step, copies_.rank_), 1);
  }
  void copy(Address to, Address from, uint64_t bytes) {
    if (bytes == 0 || to == from || !put_operations().ok()) return;
    status_ = check(driver().copy_async(to, from, bytes, stream_), "copying between GPUs");
  }
  Status end() { return put_operations(); }

 private:
  void write(Address at, uint32_t value) { operations_.push_back({kWriteValue32, at, value, 0, 0, 0}); }
  Address word(uint32_t owner, CopyStep step, uint32_t peer) const {
    return copies_.memory_.words_at + copies_.layout_.word(owner, step, slot_, peer);
  }
  const Status &put_operations() {
    for (size_t first = 0; first < operations_.size() && status_.ok(); first += kMostOperations) {
      const auto count = static_cast<unsigned>(std::min(operations_.size() - first, kMostOperations));
      status_ = check(driver().memory_operations(stream_, count, operations_.data() + first, 0), "ordering copies of GPUs");
    }
    operations_.clear();
    return status_;
  }

  const StagedCopies &copies_;
  uint32_t slot_;
  Stream stream_;
  std::vector<MemoryOperation> operations_;
  Status status_;
};

StagedCopies::StagedCopies(const Device *device, CopyLane lane, uint32_t rank, StagedMemory memory)
    : device_(device),
      lane_(lane),
      rank_(rank),
      nranks_(static_cast<uint32_t>(memory.staging.size())),
      layout_(nranks_, lane),
      memory_(std::move(memory)) {}

StagedCopies::~StagedCopies() {
  if (!is_alive(*device_)) return;
  const Current current(device_->context);
  for (const Stream stream : {streams_.fill, lane_ == CopyLane::kHost ? streams_.read : nullptr})
    if (stream != nullptr) driver().stream_destroy(stream);
}

// A slot of a GPU is filled within the GPU, several times as fast as others read it, so filling needs no separate stream.
Status StagedCopies::begin() {
  for (uint32_t slot = 0; slot < kStagingSlots; ++slot)
    for (const uint32_t peer : list({Which::kAll})) word(CopyStep::kRead, slot, peer).told.store(1, std::memory_order_release);
  COLLC_RETURN_IF_FAILED(check(driver().stream_create(&streams_.fill, kStreamNonBlocking), "making a stream"));
  streams_.read = streams_.fill;
  if (lane_ == CopyLane::kGpu) return {};
  streams_.read = nullptr;
  return check(driver().stream_create(&streams_.read, kStreamNonBlocking), "making a stream");
}

// At different peers first, so that no two ranks read from the same.
std::vector<uint32_t> StagedCopies::list(const Peers &peers) const {
  std::vector<uint32_t> ranks;
  for (uint32_t turn = 1; turn < nranks_; ++turn) {
    const uint32_t peer = (rank_ + turn) % nranks_;
    if (peers.which == Which::kAll || (peer == peers.rank) == (peers.which == Which::kOne)) ranks.push_back(peer);
  }
  return ranks;
}

CopyWord &StagedCopies::word(CopyStep step, uint32_t slot, uint32_t peer) const {
  return *reinterpret_cast<CopyWord *>(memory_.words + layout_.word(rank_, step, slot, peer));
}

Status StagedCopies::put_piece(const Call &call, const CopyRange &range, uint64_t number, const LaneStreams &streams) {
  const uint64_t at = number * memory_.piece_bytes;
  const Piece piece{call, range.at + at, std::min(range.bytes - at, memory_.piece_bytes),
                    static_cast<uint32_t>(number % kStagingSlots)};
  const bool gathers = call.collective == Collective::kAllGather;
  Steps filling(*this, piece.slot, streams.fill), reading(*this, piece.slot, streams.read);
  if (gathers || rank_ == piece.root()) fill(piece, &filling);
  COLLC_RETURN_IF_FAILED(filling.end());
  if (gathers)
    read_all(piece, &reading);
  else if (rank_ == piece.root())
    reading.copy(piece.output(), piece.input(), piece.bytes);
  else if (lane_ == CopyLane::kHost)
    read_from_root(piece, &reading);
  else
    hand_on(piece, &reading);
  return reading.end();
}

void StagedCopies::fill(const Piece &piece, Steps *steps) const {
  const Peers all{Which::kAll};
  steps->wait(CopyStep::kRead, all);
  steps->copy(steps->slot(rank_), piece.input(), piece.bytes);
  steps->tell(CopyStep::kFilled, all);
}

void StagedCopies::read_all(const Piece &piece, Steps *steps) const {
  const uint64_t block = bytes_of(piece.call);
  const Peers all{Which::kAll};
  steps->copy(piece.output() + rank_ * block, piece.input(), piece.bytes);
  steps->wait(CopyStep::kFilled, all);
  for (const uint32_t peer : list(all)) steps->copy(piece.output() + peer * block, steps->slot(peer), piece.bytes);
  steps->tell(CopyStep::kRead, all);
}

// Host memory gives a piece to all at once, and over PCIe none has to send it again.
void StagedCopies::read_from_root(const Piece &piece, Steps *steps) const {
  const Peers from_root{Which::kOne, piece.root()};
  steps->wait(CopyStep::kFilled, from_root);
  steps->copy(piece.output(), steps->slot(piece.root()), piece.bytes);
  steps->tell(CopyStep::kRead, from_root);
}

// The root's piece has a part for each rank, which passes it on to the others from its slot: two steps that take about the time
// of one whole copy. Otherwise one copy per rank would leave the root.
void StagedCopies::hand_on(const Piece &piece, Steps *steps) const {
  const Address output = piece.output();
  const uint32_t root = piece.root();
  const Peers from_root{Which::kOne, root}, others{Which::kOthers, root};
  const auto copy_part = [&](uint32_t part, Address to, Address from) {
    const BroadcastPart one(piece.bytes, nranks_, part);
    steps->copy(to + one.at, from + one.at, one.bytes);
  };
  // The root, which may read there still of an all_gather before, fills its own only behind that.
  steps->wait(CopyStep::kRead, others);
  steps->wait(CopyStep::kFilled, from_root);
  copy_part(rank_, steps->slot(rank_), steps->slot(root));
  steps->tell(CopyStep::kFilled, others);
  copy_part(rank_, output, steps->slot(rank_));
  copy_part(root, output, steps->slot(root));
  steps->tell(CopyStep::kRead, from_root);
  steps->wait(CopyStep::kFilled, others);
  for (const uint32_t peer : list(others)) copy_part(peer, output, steps->slot(peer));
  steps->tell(CopyStep::kRead, others);
}

void StagedCopies::release() {
  if (released_) return;
  released_ = true;
  for (const CopyStep step : {CopyStep::kFilled, CopyStep::kRead})
    for (uint32_t slot = 0; slot < kStagingSlots; ++slot)
      for (const uint32_t peer : list({Which::kAll})) word(step, slot, peer).released.store(1, std::memory_order_release);
}

std::string StagedCopies::find_late(int64_t now_ms, double seconds) {
  const std::string filling = find_late(CopyStep::kRead, now_ms, seconds),
                    reading = find_late(CopyStep::kFilled, now_ms, seconds);
  return reading.empty() ? filling : reading;
}

std::string StagedCopies::find_late(CopyStep step, int64_t now_ms, double seconds) {
  auto &waits = *reinterpret_cast<std::atomic<uint32_t> *>(memory_.words + layout_.waits(rank_, step));
  int64_t &seen_ms = seen_ms_[static_cast<uint32_t>(step)];
  uint32_t what = waits.load(std::memory_order_acquire);
  if ((what & kSeen) == 0) {
    seen_ms = now_ms;
    if (what != 0) waits.compare_exchange_strong(what, what | kSeen, std::memory_order_acq_rel);
    return {};
  }
  if (static_cast<double>(now_ms - seen_ms) <= 1e3 * seconds) return {};
  const uint32_t slot = what >> kSlotAt & 7;
  const Peers peers{static_cast<Which>(what >> kWhichAt & 3), (what & ~kSeen) >> kRankAt};
  std::string late;
  for (const uint32_t peer : list(peers))
    if (word(step, slot, peer).told.load(std::memory_order_acquire) == 0)
      late += format("%s%u", late.empty() ? "" : ", ", peer);
  if (late.empty()) return {};
  return format("rank(s) %s to %s%s", late.c_str(), step == CopyStep::kFilled ? "copy their part" : "have read its part",
                lane_ == CopyLane::kHost ? " through pinned host memory" : "");
}

}  // namespace collc::cuda
