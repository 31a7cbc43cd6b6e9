// Weights of path classes: how much of a call each class of links (nvlink, pcie, net) carries. They come from COLLC_WEIGHTS,
// from a tuning file, from the tables of the library, or from the balancer.
//
// The weights of all classes are packed into one word, one byte per class (collc/step_program.h); the number of a class is its
// `part`. A program whose weights are all 0 is not split into classes. All functions are pure, except read_weighting(), which
// reads the environment.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "collc/step_program.h"

namespace collc {

constexpr uint32_t kNvlinkPart = 0, kPciePart = 1, kNetPart = 2;

// Returns "nvlink", "pcie" or "net".
const char *class_name(uint32_t part);

// Returns " over pcie", followed by ", which has failed," if the class is in `lost` (one bit per class). For errors of calls
// that wait.
std::string describe_class(uint32_t part, uint32_t lost);

constexpr uint32_t weight_of(uint32_t weights, uint32_t part) { return weights >> 8 * part & 0xff; }

// Returns the word that has `weight` (0 to 255) for one class and 0 for all others.
constexpr uint32_t pack_weight(uint32_t weight, uint32_t part) { return weight << 8 * part; }

// Returns the weights that the tables give a program; 0 if the program is not split into classes.
inline uint32_t program_weights(const Program &program) {
  return pack_weight(program.nvlink_weight, kNvlinkPart) | pack_weight(program.pcie_weight, kPciePart) |
         pack_weight(program.net_weight, kNetPart);
}

// COLLC_WEIGHTS: either a weight from 0 to 255 per class ("nvlink:3,pcie:1", not all 0), or "random:SEED", which gives each
// call other weights, equal on all ranks. Both members are 0 if the variable is not set.
struct Weighting {
  uint32_t weights = 0;
  uint32_t seed_plus_one = 0;  // SEED + 1
};

Status read_weighting(Weighting *weighting);

// Parses weights per class, as in "nvlink:3,pcie:1". Returns false if the text has another form or all weights are 0.
bool parse_weights(const std::string &text, uint32_t *weights);

// Returns "COLLC_WEIGHTS=nvlink:3,pcie:1" or "no COLLC_WEIGHTS".
std::string show_weighting(const Weighting &weighting);

// Returns the weights of a call; 0 if the program is not split into classes. All ranks get equal weights, because these depend
// only on the number of the call and on settings that all ranks share. COLLC_WEIGHTS counts if it gives a weight to a class
// that the program has; else `tuned`, the weights of a tuning file, if not 0; else the program's weights.
uint32_t call_weights(const Program &program, const Weighting &weighting, uint64_t call_number, uint32_t tuned);

// Returns `weights` with weight 0 for the classes in `lost` (one bit per class). If no weight is left, returns `fallback` (the
// program's weights) without these classes; if no weight is left there either, returns `weights` unchanged.
uint32_t remove_classes(uint32_t lost, uint32_t weights, uint32_t fallback);

// Returns `weights` with weight 0 for each class that the program does not have.
uint32_t restrict_weights(const Program &program, uint32_t weights);

}  // namespace collc
