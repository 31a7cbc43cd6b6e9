#include "plan/overrides.h"

#include <strings.h>

#include <iterator>

#include "collc/cuda/layout.h"
#include "base/environment.h"

namespace collc {
namespace {

const char *const kProtocolNames[] = {"Simple", "LL", "LL128"};  // as tables number them
static_assert(std::size(kProtocolNames) == cuda::kProtocols, "one name per protocol");
static_assert(Overrides::kSimple == cuda::kSimple, "one numbering of protocols");
constexpr uint32_t kMostChannels = 1024;

// -1: no protocol's name.
int32_t protocol_of(const char *text) {
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

Status disagreement(uint32_t rank, const std::string &first, const std::string &other) {
  return fail(ncclInvalidUsage, "ranks 0 and %u disagree: %s on the one, %s on the other", rank, first.c_str(), other.c_str());
}

}  // namespace

bool follows_nccl_proto() { return protocol_of(read_text("NCCL_PROTO")) >= 0; }

Status read_overrides(Overrides *overrides) {
  *overrides = {};
  const char *text = read_text("COLLC_PROTO");
  if (text != nullptr) {
    overrides->protocol = protocol_of(text);
    if (overrides->protocol < 0) return fail(ncclInvalidUsage, "COLLC_PROTO=%.40s is not Simple, LL or LL128", text);
  } else if (follows_nccl_proto()) {
    overrides->protocol = protocol_of(read_text("NCCL_PROTO"));
    overrides->is_preference = 1;
  }
  COLLC_RETURN_IF_FAILED(read_chunk(&overrides->chunk_bytes));
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_CHANNELS", kMostChannels, &overrides->channels));
  COLLC_RETURN_IF_FAILED(read_balance(&overrides->balance, &overrides->balance_seed));
  return read_weighting(&overrides->weighting);
}

Status compare_overrides(const Overrides &first, const Overrides &other, uint32_t rank) {
  if (other.protocol != first.protocol) return disagreement(rank, show_protocol(first), show_protocol(other));
  const auto differ = [rank](const char *name, uint32_t one, uint32_t two) {
    return one == two ? Status() : disagreement(rank, show_number(name, one), show_number(name, two));
  };
  COLLC_RETURN_IF_FAILED(differ("COLLC_CHUNK", first.chunk_bytes, other.chunk_bytes));
  COLLC_RETURN_IF_FAILED(differ("COLLC_CHANNELS", first.channels, other.channels));
  if (first.balance != other.balance) return disagreement(rank, show_balance(first.balance), show_balance(other.balance));
  const std::string one = show_weighting(first.weighting), two = show_weighting(other.weighting);
  return one == two ? Status() : disagreement(rank, one, two);
}

}  // namespace collc
