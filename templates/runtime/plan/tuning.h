// Which program a call runs: the embedded table of choices, or the one that COLLC_TUNING puts in its place.
//
// A tuning file is text, what `collc tune` writes:
//
//   collc-tuning/1
//   library 2845b3092f01...          the build id of the library that it was measured with
//   machine <collc_machine()>        what it was measured on
//   table 0 broadcast 3              of allocation 0, for broadcasts from (plan) rank 3; "-" without a root
//   0 17                             from 0 bytes (count * element size) on: program 17 of the allocation
//   65536 12 nvlink:9,pcie:1         program 12, whose classes of links have these weights
//   end 2                            number of rows in all
//
// A program that is cut into classes has one weighting in a file; without one, that of the library. '#' begins a comment. Collectives and roots without a table keep the embedded one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "collc/tables.h"
#include "base/function_ref.h"
#include "base/status.h"

namespace collc {

struct TuningRow {
  uint64_t min_bytes;
  const Program *program;
  uint32_t weights = 0;  // of its classes of links, as step_program.h has them; 0: its own
  const Program *alternative = nullptr;  // what a rank may run in its place
};

struct TuningTable {
  uint32_t allocation;
  Collective collective;
  int root;  // -1: none
  std::vector<TuningRow> rows;
};

// The contents of a file; without tables, the embedded table decides everything.
struct Tuning {
  std::vector<TuningTable> tables;
  // The same on all ranks that choose alike; 0 without tables.
  uint64_t digest() const;
};

// What a tuning file calls this machine.
const char *machine_description();

// Reads a file for this library on this machine; fails, in one sentence, if a word of it is not as above.
Status read_tuning(const char *path, Tuning *tuning);

// What COLLC_TUNING names. A file that read_tuning refuses counts as none; `reports` (rank 0) prints that to stderr, once per
// process and reason.
Tuning find_tuning(bool reports);

// The choices of one communicator, for lookup by every call.
class Choices {
 public:
  Choices() = default;
  Choices(const Allocation &allocation, const Tuning &tuning);

  // The program for a call of `bytes` (count * element size), or null if the library holds none. `root` is a plan rank or -1.
  // `runs` says whether a program can run the call. The last row counts that is for calls so large: those of programs inside
  // a switch stand behind the others, which run what they cannot.
  // `otherwise`: if not null, what a rank may run in its place; null: nothing else.
  const Program *find(Collective collective, int root, uint64_t bytes, FunctionRef<bool(const Program &)> runs,
                      const Program **otherwise = nullptr) const;
  // A program without a root of the embedded table also runs calls from `begin` on and below `end`; a rank may run what stood
  // there before in its place. Not where a file decides.
  void widen(const Program &program, uint64_t begin, uint64_t end);
  // This program alone for its collective and root.
  void force(const Program &program) { rows(program.collective, program.root) = {{0, &program}}; }
  // By program of the allocation, the weights of its classes that a file gives it; 0: its own. Empty without such a file.
  const std::vector<uint32_t> &weights() const { return weights_; }

 private:
  static constexpr uint32_t kCollectives = 9;
  std::vector<TuningRow> &rows(Collective collective, int root);
  size_t place_of(Collective collective, int root) const {
    return static_cast<size_t>(collective) * roots_ + static_cast<size_t>(root + 1);
  }

  uint32_t roots_ = 0;  // ranks + 1: the first place is for calls without a root
  std::vector<std::vector<TuningRow>> rows_;  // by collective, then root + 1; ascending
  std::vector<bool> given_;  // the same: by a file
  std::vector<uint32_t> weights_;
};

}  // namespace collc
