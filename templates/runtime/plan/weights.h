// How much of a call each class of links carries: COLLC_WEIGHTS, or what the tables say of the call's program.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "collc/step_program.h"

namespace collc {

// COLLC_WEIGHTS: "nvlink:3,pcie:1", a weight from 0 to 255 for each class, not all 0; or "random:SEED", other weights for
// every call, drawn alike on all ranks. Both 0 where the variable is not set.
struct Weighting {
  uint32_t weights = 0;  // as step_program.h has them
  uint32_t seed_plus_one = 0;    // 1 + SEED
};

Status read_weighting(Weighting *weighting);
// The same of a tuning file's word: of classes alone. False if it is none.
bool parse_weights(const std::string &word, uint32_t *weights);
// "COLLC_WEIGHTS=nvlink:3,pcie:1", or that it is not set.
std::string show_weighting(const Weighting &weighting);

// By number of the part: "nvlink", "pcie", "net".
constexpr uint32_t kNvlinkPart = 0, kPciePart = 1, kNetPart = 2;
const char *class_name(uint32_t part);
// For errors of a call that waits: over which class, and whether it is one of `lost`.
std::string describe_class(uint32_t part, uint32_t lost);

// A program's own; 0: it is not cut into classes.
inline uint32_t program_weights(const Program &program) {
  return program.nvlink_weight | uint32_t{program.pcie_weight} << 8 | uint32_t{program.net_weight} << 16;
}

// Those of a call, the same on all ranks: they depend on its number and settings that all ranks share. A class that the
// program has no share of weighs nothing; where none is left, the program's own count.
// `tuned`: that of a tuning file in its place, or 0.
uint32_t call_weights(const Program &program, const Weighting &wanted, uint64_t call, uint32_t tuned);
// Weights without the classes of `lost`, a bit for each; of a program with weights `own`. Where nothing is left, what they were.
uint32_t remove_classes(uint32_t lost, uint32_t weights, uint32_t own);
// `all` of the classes that the program has; 0 where none is left.
uint32_t restrict_weights(const Program &program, uint32_t all);

}  // namespace collc
