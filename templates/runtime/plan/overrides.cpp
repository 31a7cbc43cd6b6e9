#include "plan/overrides.h"

#include <strings.h>

#include <iterator>

#include "collc/cuda/layout.h"
#include "base/environment.h"

namespace collc {
namespace {

const char *const kProtocolNames[] = {"Simple", "LL", "LL128"};  // indexed by the tables' number of the protocol
static_assert(std::size(kProtocolNames) == cuda::kProtocols, "one name per protocol");
static_assert(Overrides::kSimple == cuda::kSimple, "one numbering of protocols");
constexpr uint32_t kMaxChannels = 1024;  // that COLLC_CHANNELS may name

// Returns the protocol's number; -1 if `text` is null or names no protocol.
int32_t parse_protocol(const char *text) {
  for (size_t p = 0; text != nullptr && p < std::size(kProtocolNames); ++p)
    if (strcasecmp(text, kProtocolNames[p]) == 0) return static_cast<int32_t>(p);
  return -1;
}

std::string show_protocol(const Overrides &overrides) {
  const char *const name = overrides.is_preference != 0 ? "NCCL_PROTO" : "COLLC_PROTO";
  return overrides.protocol < 0 ? format("no %s", name) : format("%s=%s", name, kProtocolNames[overrides.protocol]);
}

std::string show_number(const char *name, uint32_t value) {
  return value == 0 ? format("no %s", name) : format("%s=%u", name, value);
}

// Fails if the texts of rank 0 and of rank `rank` differ.
Status compare_texts(uint32_t rank, const std::string &first, const std::string &other) {
  if (first == other) return {};
  return fail(ncclInvalidUsage, "ranks 0 and %u disagree: %s on the one, %s on the other", rank, first.c_str(), other.c_str());
}

}  // namespace

bool follows_nccl_proto() { return parse_protocol(read_text("NCCL_PROTO")) >= 0; }

Status read_overrides(Overrides *overrides) {
  *overrides = {};
  const char *text = read_text("COLLC_PROTO");
  if (text != nullptr) {
    overrides->protocol = parse_protocol(text);
    if (overrides->protocol < 0) return fail(ncclInvalidUsage, "COLLC_PROTO=%.40s is not Simple, LL or LL128", text);
  } else if (follows_nccl_proto()) {
    overrides->protocol = parse_protocol(read_text("NCCL_PROTO"));
    overrides->is_preference = 1;
  }
  COLLC_RETURN_IF_FAILED(read_chunk(&overrides->chunk_bytes));
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_CHANNELS", kMaxChannels, &overrides->channels));
  COLLC_RETURN_IF_FAILED(read_balance(&overrides->balance, &overrides->balance_seed));
  return read_weighting(&overrides->weighting);
}

Status compare_overrides(const Overrides &first, const Overrides &other, uint32_t rank) {
  if (first.protocol != other.protocol) return compare_texts(rank, show_protocol(first), show_protocol(other));
  COLLC_RETURN_IF_FAILED(
      compare_texts(rank, show_number("COLLC_CHUNK", first.chunk_bytes), show_number("COLLC_CHUNK", other.chunk_bytes)));
  COLLC_RETURN_IF_FAILED(
      compare_texts(rank, show_number("COLLC_CHANNELS", first.channels), show_number("COLLC_CHANNELS", other.channels)));
  COLLC_RETURN_IF_FAILED(compare_texts(rank, show_balance(first.balance), show_balance(other.balance)));
  return compare_texts(rank, show_weighting(first.weighting), show_weighting(other.weighting));
}

}  // namespace collc
