#include "plan/weights.h"

#include <iterator>

#include "base/environment.h"

namespace collc {
namespace {

const char *const kClassNames[] = {"nvlink", "pcie", "net"};
static_assert(std::size(kClassNames) == kClasses, "one name per class");
constexpr uint32_t kMaxWeight = 255;
constexpr uint32_t kMaxSeed = 1u << 30;
constexpr uint32_t kAllBits = 0xff;  // of one weight

bool read_number(const std::string &word, uint32_t max, uint32_t *number) {
  if (word.empty() || word.size() > 10 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  const uint64_t value = std::stoull(word);
  *number = static_cast<uint32_t>(value);
  return value <= max;
}

// A bijection that mixes all bits (Stafford's variant 13 of the finalizer of MurmurHash3).
uint64_t mix_bits(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

// Returns pseudorandom weights, which depend only on the arguments. A class gets weight 0 in about one of four calls.
uint32_t draw_weights(uint32_t seed, uint64_t call_number) {
  const uint64_t bits = mix_bits(call_number + mix_bits(seed));
  uint32_t weights = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((bits >> (32 + 2 * c) & 3) != 0) weights |= static_cast<uint32_t>(bits) & pack_weight(kAllBits, c);
  return weights;
}

}  // namespace

const char *class_name(uint32_t part) { return kClassNames[part]; }

std::string describe_class(uint32_t part, uint32_t lost) {
  return std::string(" over ") + class_name(part) + ((lost >> part & 1) != 0 ? ", which has failed," : "");
}

bool parse_weights(const std::string &text, uint32_t *weights) {
  uint32_t listed = 0;  // one bit per class
  *weights = 0;
  for (const std::string &word : split_list(text)) {
    const size_t colon = word.find(':');
    uint32_t weight = 0, part = 0;
    if (colon == std::string::npos || !read_number(word.substr(colon + 1), kMaxWeight, &weight)) return false;
    while (part < kClasses && word.substr(0, colon) != kClassNames[part]) ++part;
    if (part == kClasses || (listed >> part & 1) != 0) return false;
    listed |= 1u << part;
    *weights |= pack_weight(weight, part);
  }
  return *weights != 0;
}

Status read_weighting(Weighting *weighting) {
  *weighting = {};
  const char *const value = read_text("COLLC_WEIGHTS");
  if (value == nullptr) return {};
  const std::string text = value, prefix = "random:";
  uint32_t seed = 0;
  if (text.compare(0, prefix.size(), prefix) == 0 && read_number(text.substr(prefix.size()), kMaxSeed, &seed)) {
    weighting->seed_plus_one = seed + 1;
    return {};
  }
  if (parse_weights(text, &weighting->weights)) return {};
  return fail(ncclInvalidUsage, "COLLC_WEIGHTS=%.60s is not weights as in nvlink:3,pcie:1, from 0 to %u and not all 0", value,
              kMaxWeight);
}

std::string show_weighting(const Weighting &weighting) {
  if (weighting.seed_plus_one != 0) return format("COLLC_WEIGHTS=random:%u", weighting.seed_plus_one - 1);
  std::string text;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (const uint32_t weight = weight_of(weighting.weights, c); weight != 0)
      text += (text.empty() ? "" : ",") + std::string(kClassNames[c]) + ":" + std::to_string(weight);
  return text.empty() ? "no COLLC_WEIGHTS" : "COLLC_WEIGHTS=" + text;
}

uint32_t remove_classes(uint32_t lost, uint32_t weights, uint32_t fallback) {
  uint32_t mask = ~uint32_t{0};
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((lost >> c & 1) != 0) mask &= ~pack_weight(kAllBits, c);
  if ((weights & mask) != 0) return weights & mask;
  return (fallback & mask) != 0 ? fallback & mask : weights;
}

uint32_t restrict_weights(const Program &program, uint32_t weights) {
  const uint32_t classes = program_weights(program);
  uint32_t result = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (weight_of(classes, c) != 0) result |= weights & pack_weight(kAllBits, c);
  return result;
}

uint32_t call_weights(const Program &program, const Weighting &weighting, uint64_t call_number, uint32_t tuned) {
  const uint32_t program_default = program_weights(program);
  if (program_default == 0) return 0;
  const uint32_t requested =
      weighting.seed_plus_one != 0 ? draw_weights(weighting.seed_plus_one, call_number) : weighting.weights;
  if (const uint32_t weights = restrict_weights(program, requested); weights != 0) return weights;
  return tuned != 0 ? tuned : program_default;
}

}  // namespace collc
