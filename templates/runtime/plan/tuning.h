// The program that each call runs: by the table in the library, or by the file that COLLC_TUNING names. `collc tune` writes
// such a file:
//
//   collc-tuning/1
//   library 2845b3092f01...          build id of the library of the measurement
//   machine <collc_machine()>        the machine of the measurement
//   table 0 broadcast 3              for allocation 0 and broadcasts from plan rank 3; "-" for collectives without a root
//   0 17                             from 0 bytes (count * element size) on, run program 17 of the allocation
//   65536 12 nvlink:9,pcie:1         from 64 KiB on, run program 12 with these weights of path classes
//   end 2                            the number of rows of all tables
//
// '#' begins a comment. A program that is split into path classes has the same weights in all rows of a file; without them, the
// weights of the library count. Collectives and roots without a table use the table in the library.
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
  uint32_t weights = 0;  // of path classes, packed as in plan/weights.h; 0: the program's weights
  const Program *alternative = nullptr;  // a rank may run this program instead; null if there is none
};

struct TuningTable {
  uint32_t allocation;
  Collective collective;
  int root;  // plan rank; -1 for collectives without a root
  std::vector<TuningRow> rows;  // the first has min_bytes 0; ascending
};

// The contents of a tuning file. Without tables, the library's table decides everything.
struct Tuning {
  std::vector<TuningTable> tables;

  // Returns a hash of the tables, 0 without tables. Ranks compare it at creation (bootstrap/introduction.h).
  uint64_t digest() const;
};

// Returns the text that stands for this machine in tuning and threshold files: number and model of the CPUs, without '#', at
// most 200 characters. The pointer stays valid.
const char *machine_description();

// Reads a tuning file for this library and this machine. Fails with one sentence if the file has another form, or is for
// another library or machine; `tuning` then has no tables.
Status read_tuning(const char *path, Tuning *tuning);

// Returns the tuning that COLLC_TUNING names; without tables if the variable is not set or read_tuning() fails. With
// `reports_errors`, a failure is reported on stderr, once per process and text.
Tuning find_tuning(bool reports_errors);

// The table of one communicator: which program a call runs. Complete after creation; then only Communicator::force() changes
// it.
class Choices {
 public:
  Choices() = default;
  Choices(const Allocation &allocation, const Tuning &tuning);

  // Returns the program of a call of `bytes` (count * element size); null if the library has none. `root` is a plan rank, or
  // -1. `can_run` tells whether a program can run the call. The last row counts whose min_bytes is not above `bytes` and whose
  // program can run the call. Programs that reduce in a switch have the last rows; calls that they cannot run use earlier
  // rows. If a program is found and `alternative` is not null, sets `alternative` to the program that a rank may run instead,
  // or to null.
  const Program *find(Collective collective, int root, uint64_t bytes, FunctionRef<bool(const Program &)> can_run,
                      const Program **alternative = nullptr) const;

  // Lets calls from `begin` bytes up to, but not including, `end` bytes run `program`, which must have no root and be from the
  // library's table; the programs of these calls become alternatives. Does nothing if a tuning file has a table for the
  // collective.
  void widen(const Program &program, uint64_t begin, uint64_t end);

  // Lets all calls of this program's collective and root run it.
  void force(const Program &program) { rows(program.collective, program.root) = {{0, &program}}; }

  // Returns the weights that a tuning file gives to each program of the allocation, 0 for none; empty if it gives none at all.
  const std::vector<uint32_t> &weights() const { return weights_; }

 private:
  std::vector<TuningRow> &rows(Collective collective, int root) { return rows_[index_of(collective, root)]; }
  size_t index_of(Collective collective, int root) const {
    return static_cast<size_t>(collective) * nroots_ + static_cast<size_t>(root + 1);
  }

  uint32_t nroots_ = 0;  // ranks + 1; the first root is -1
  std::vector<std::vector<TuningRow>> rows_;  // by collective, then root + 1; each ascending by min_bytes
  std::vector<bool> is_from_file_;  // for each element of rows_
  std::vector<uint32_t> weights_;
};

}  // namespace collc
