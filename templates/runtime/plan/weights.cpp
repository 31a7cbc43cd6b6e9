#include "plan/weights.h"

#include <iterator>

#include "base/environment.h"

namespace collc {
namespace {

const char *const kClassNames[] = {"nvlink", "pcie", "net"};
static_assert(std::size(kClassNames) == kClasses, "one name per class");
constexpr uint32_t kMostWeight = 255, kMostSeed = 1u << 30;

bool read_number(const std::string &word, uint32_t most, uint32_t *number) {
  if (word.empty() || word.size() > 10 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  const uint64_t value = std::stoull(word);
  *number = static_cast<uint32_t>(value);
  return value <= most;
}

// A bijection that mixes (Stafford's variant 13 of the finalizer of MurmurHash3).
uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

// Each class weighs nothing in one call of four.
uint32_t draw(uint32_t seed, uint64_t call) {
  const uint64_t bits = mixed(call + mixed(seed));
  uint32_t weights = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((bits >> (32 + 2 * c) & 3) != 0) weights |= static_cast<uint32_t>(bits >> 8 * c & 0xff) << 8 * c;
  return weights;
}

}  // namespace

const char *class_name(uint32_t part) { return kClassNames[part]; }

std::string describe_class(uint32_t part, uint32_t lost) {
  return std::string(" over ") + class_name(part) + ((lost >> part & 1) != 0 ? ", which has failed," : "");
}

bool parse_weights(const std::string &word, uint32_t *weights) {
  uint32_t seen = 0;
  *weights = 0;
  for (const std::string &one : split_list(word)) {
    const size_t colon = one.find(':');
    uint32_t number = 0, at = 0;
    if (colon == std::string::npos || !read_number(one.substr(colon + 1), kMostWeight, &number)) return false;
    while (at < kClasses && one.substr(0, colon) != kClassNames[at]) ++at;
    if (at == kClasses || (seen >> at & 1) != 0) return false;
    seen |= 1u << at;
    *weights |= number << 8 * at;
  }
  return *weights != 0;
}

Status read_weighting(Weighting *weighting) {
  *weighting = {};
  const char *const text = read_text("COLLC_WEIGHTS");
  if (text == nullptr) return {};
  const std::string all = text, prefix = "random:";
  uint32_t seed = 0;
  if (all.compare(0, prefix.size(), prefix) == 0 && read_number(all.substr(prefix.size()), kMostSeed, &seed)) {
    weighting->seed_plus_one = seed + 1;
    return {};
  }
  if (parse_weights(all, &weighting->weights)) return {};
  return fail(ncclInvalidUsage, "COLLC_WEIGHTS=%.60s is not weights as in nvlink:3,pcie:1, from 0 to %u and not all 0", text,
              kMostWeight);
}

std::string show_weighting(const Weighting &weighting) {
  if (weighting.seed_plus_one != 0) return format("COLLC_WEIGHTS=random:%u", weighting.seed_plus_one - 1);
  std::string text;
  for (uint32_t c = 0; c < kClasses; ++c)
    if (const uint32_t weight = weighting.weights >> 8 * c & 0xff; weight != 0)
      text += (text.empty() ? "" : ",") + std::string(kClassNames[c]) + ":" + std::to_string(weight);
  return text.empty() ? "no COLLC_WEIGHTS" : "COLLC_WEIGHTS=" + text;
}

uint32_t remove_classes(uint32_t lost, uint32_t weights, uint32_t own) {
  uint32_t kept = ~uint32_t{0};
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((lost >> c & 1) != 0) kept &= ~(0xffu << 8 * c);
  if ((weights & kept) != 0) return weights & kept;
  return (own & kept) != 0 ? own & kept : weights;
}

uint32_t restrict_weights(const Program &program, uint32_t all) {
  const uint32_t own = program_weights(program);
  uint32_t weights = 0;
  for (uint32_t c = 0; c < kClasses; ++c)
    if ((own >> 8 * c & 0xff) != 0) weights |= all & 0xffu << 8 * c;
  return weights;
}

uint32_t call_weights(const Program &program, const Weighting &wanted, uint64_t call, uint32_t tuned) {
  const uint32_t own = program_weights(program);
  if (own == 0) return 0;
  const uint32_t weights =
      restrict_weights(program, wanted.seed_plus_one != 0 ? draw(wanted.seed_plus_one, call) : wanted.weights);
  if (weights != 0) return weights;
  return tuned != 0 ? tuned : own;
}

}  // namespace collc
