#include "plan/tuning.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/environment.h"
#include "base/file.h"
#include "base/log.h"
#include "plan/call.h"
#include "plan/embedded_tables.h"
#include "plan/weights.h"

extern "C" {
extern const char collc_manifest[];
}

namespace collc {
namespace {

constexpr const char *kTuningFormat = "collc-tuning/1";
constexpr size_t kMaxLineBytes = 512;       // of a tuning file
constexpr size_t kMaxQuoteBytes = 60;       // of a file's text in a message
constexpr size_t kMaxDescriptionBytes = 200;  // of machine_description()

// Returns the first bytes of a file's text, for a message.
std::string quote_start(const std::string &text) { return printable(text.substr(0, kMaxQuoteBytes)); }

// Returns the value in a line of /proc/cpuinfo, the text after the colon; empty if there is none.
std::string value_of(const std::string &line) {
  const size_t colon = line.find(':');
  const size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? "" : line.substr(start);
}

// Machines with the same number and model of CPUs may share tuning files, so the text contains nothing else.
std::string describe_machine() {
  std::string model;
  uint32_t ncpus = 0;
  if (std::FILE *file = std::fopen("/proc/cpuinfo", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      line[std::strcspn(line, "\n")] = '\0';
      if (std::strncmp(line, "processor", 9) == 0) ++ncpus;
      const bool has_model = std::strncmp(line, "model name", 10) == 0 || std::strncmp(line, "CPU part", 8) == 0;
      if (has_model && model.empty()) model = value_of(line);
    }
    std::fclose(file);
  }
  std::string text = std::to_string(ncpus) + " x ";
  for (const char c : model.empty() ? std::string("unknown CPU") : model)
    if (c > ' ' ? c <= '~' && c != '#' : c == ' ' && text.back() != ' ') text += c;
  while (text.back() == ' ') text.pop_back();
  return text.substr(0, kMaxDescriptionBytes);
}

// Returns the build id in the manifest. Each of its keys begins a line, and JSON strings contain no line breaks, so the first
// match is the key.
std::string build_id() {
  const char *const key = "\n \"build_id\": \"";
  const char *const match = std::strstr(collc_manifest, key);
  if (match == nullptr) return "";
  const char *const begin = match + std::strlen(key);
  return std::string(begin, std::strcspn(begin, "\""));
}

bool parse_count(const std::string &word, uint64_t max, uint64_t *value) {
  if (word.empty() || word.size() > 19 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  *value = std::strtoull(word.c_str(), nullptr, 10);
  return *value <= max;
}

bool parse_collective(const std::string &word, Collective *collective) {
  for (uint32_t c = 0; c <= static_cast<uint32_t>(Collective::kSendRecv); ++c)
    if (word == name_of(static_cast<Collective>(c))) {
      *collective = static_cast<Collective>(c);
      return true;
    }
  return false;
}

// Reads the text of a tuning file line by line. Every failure is one sentence without a subject; the caller puts the file's
// name in front of it.
class TuningReader {
 public:
  explicit TuningReader(const std::string &text) : text_(text) {}

  Status read(Tuning *tuning) {
    COLLC_RETURN_IF_FAILED(read_header());
    std::string rest;
    uint64_t nrows = 0;
    while (read_line()) {
      if (has_prefix("table ", &rest)) {
        COLLC_RETURN_IF_FAILED(read_table(rest, tuning));
      } else if (has_prefix("end ", &rest)) {
        uint64_t count = 0;
        if (!parse_count(rest, UINT64_MAX, &count) || count != nrows) return fail_expecting("the number of rows");
        if (read_line()) return fail_expecting("nothing after the end");
        return check_rows(*tuning);
      } else {
        COLLC_RETURN_IF_FAILED(read_row(tuning));
        ++nrows;
      }
    }
    return length_error_.empty() ? fail(ncclInvalidUsage, "is truncated: it has no end")
                                 : fail(ncclInvalidUsage, "%s", length_error_.c_str());
  }

 private:
  // Reads the format, the library and the machine.
  Status read_header() {
    std::string rest;
    if (!read_line() || line_ != kTuningFormat)
      return line_.rfind("collc-tuning/", 0) == 0
                 ? fail(ncclInvalidUsage, "is of version %s, this library reads %s", quote_start(line_).c_str(), kTuningFormat)
                 : fail(ncclInvalidUsage, "is no tuning file: it does not begin with %s", kTuningFormat);
    if (!read_line() || !has_prefix("library ", &rest)) return fail_expecting("the library's build id");
    if (rest != build_id())
      return fail(ncclInvalidUsage, "is for another library: build %s, this one is %s", quote_start(rest).c_str(),
                  build_id().c_str());
    if (!read_line() || !has_prefix("machine ", &rest)) return fail_expecting("the machine");
    if (rest != machine_description())
      return fail(ncclInvalidUsage, "is for another machine: %s, this one is %s", quote_start(rest).c_str(),
                  machine_description());
    return {};
  }

  // Sets line_ to the next line that has any text besides its comment, without spaces at both ends. Returns false at the end of
  // the text, or if a line is too long. A last line without a newline counts as cut off and is not read.
  bool read_line() {
    while (position_ < text_.size() && length_error_.empty()) {
      const size_t end = text_.find('\n', position_);
      if (end == std::string::npos) return false;
      line_ = text_.substr(position_, std::min(end - position_, kMaxLineBytes));
      if (end - position_ > kMaxLineBytes) length_error_ = format("line %u is too long", line_number_ + 1);
      position_ = end + 1;
      ++line_number_;
      line_.resize(std::min(line_.size(), line_.find('#')));
      const size_t first = line_.find_first_not_of(" \t\r");
      if (first == std::string::npos) continue;
      line_ = line_.substr(first, line_.find_last_not_of(" \t\r") + 1 - first);
      return length_error_.empty();
    }
    return false;
  }

  // Returns whether the line begins with `prefix`; `rest` is then the remainder.
  bool has_prefix(const char *prefix, std::string *rest) const {
    const size_t size = std::strlen(prefix);
    if (line_.compare(0, size, prefix) != 0) return false;
    *rest = line_.substr(size);
    return true;
  }

  Status fail_expecting(const char *expected) const {
    return fail(ncclInvalidUsage, "line %u, \"%s\": expected %s", line_number_, quote_start(line_).c_str(), expected);
  }

  Status read_table(const std::string &rest, Tuning *tuning) {
    std::istringstream words(rest);
    std::string allocation, collective, root, extra;
    words >> allocation >> collective >> root;
    TuningTable table = {0, Collective::kAllReduce, -1, {}};
    uint64_t number = 0;
    if (words >> extra || !parse_count(allocation, UINT32_MAX, &number) || number >= tables().nallocations)
      return fail_expecting("one of the library's allocations, a collective and a root or -");
    table.allocation = static_cast<uint32_t>(number);
    if (!parse_collective(collective, &table.collective)) return fail_expecting("a collective");
    if (root != "-") {
      if (!parse_count(root, UINT32_MAX, &number) || number >= tables().allocations[table.allocation].nranks)
        return fail_expecting("a root or -");
      table.root = static_cast<int>(number);
    }
    for (const TuningTable &other : tuning->tables)
      if (other.allocation == table.allocation && other.collective == table.collective && other.root == table.root)
        return fail_expecting("each table once");
    tuning->tables.push_back(std::move(table));
    return {};
  }

  Status read_row(Tuning *tuning) {
    std::istringstream words(line_);
    std::string bytes, number, classes, extra;
    words >> bytes >> number >> classes;
    if (tuning->tables.empty()) return fail_expecting("a table before its rows");
    TuningTable &table = tuning->tables.back();
    const Allocation &allocation = tables().allocations[table.allocation];
    uint64_t min_bytes = 0, index = 0;
    if (words >> extra || !parse_count(bytes, UINT64_MAX - 1, &min_bytes) || !parse_count(number, UINT32_MAX, &index))
      return fail_expecting("bytes and a program");
    if (table.rows.empty() ? min_bytes != 0 : min_bytes <= table.rows.back().min_bytes)
      return fail_expecting("rows from 0 bytes on, ascending");
    if (index >= allocation.nprograms) return fail_expecting("one of the allocation's programs");
    const Program &program = tables().programs[allocation.first_program + index];
    if (program.collective != table.collective || program.root != table.root)
      return fail_expecting("a program of the table's collective and root");
    uint32_t weights = 0;
    if (!classes.empty() && (!parse_weights(classes, &weights) || restrict_weights(program, weights) != weights))
      return fail_expecting("weights of classes that the program is cut into, as in nvlink:3,pcie:1");
    for (const TuningRow &other : table.rows)
      if (other.program == &program && other.weights != weights) return fail_expecting("one weighting of each program");
    table.rows.push_back({min_bytes, &program, weights});
    return {};
  }

  Status check_rows(const Tuning &tuning) const {
    for (const TuningTable &table : tuning.tables)
      if (table.rows.empty()) return fail(ncclInvalidUsage, "has a table of %s without rows", name_of(table.collective));
    return {};
  }

  const std::string &text_;
  size_t position_ = 0;       // of the next line in text_
  unsigned line_number_ = 0;  // of line_, counted from 1
  std::string line_;
  std::string length_error_;  // names the line that is too long; empty if none is
};

}  // namespace

uint64_t Tuning::digest() const {
  if (tables.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 0x100000001b3;
  };
  for (const TuningTable &table : tables) {
    for (const uint64_t value : {uint64_t{table.allocation}, static_cast<uint64_t>(table.collective),
                                 static_cast<uint64_t>(table.root + 1), uint64_t{table.rows.size()}})
      add(value);
    for (const TuningRow &row : table.rows) {
      add(row.min_bytes);
      add(static_cast<uint64_t>(row.program - collc::tables().programs));
      if (row.weights != 0) add(row.weights);
    }
  }
  return hash == 0 ? 1 : hash;
}

Status read_tuning(const char *path, Tuning *tuning) {
  tuning->tables.clear();
  std::string text;
  COLLC_RETURN_IF_FAILED(read_small_file(path, &text));
  const Status status = TuningReader(text).read(tuning);
  if (!status.ok()) tuning->tables.clear();
  return status;
}

Tuning find_tuning(bool reports_errors) {
  Tuning tuning;
  const char *path = read_path("COLLC_TUNING");
  if (path == nullptr) return tuning;
  const Status status = read_tuning(path, &tuning);
  if (!status.ok() && reports_errors)
    say_once("COLLC_TUNING=" + std::string(path).substr(0, 200) + " " + status.text() + ": the embedded table stays in use");
  return tuning;
}

Choices::Choices(const Allocation &allocation, const Tuning &tuning)
    : nroots_(allocation.nranks + 1), rows_(size_t{kCollectives} * nroots_), is_from_file_(rows_.size()) {
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables().programs[allocation.first_program + p];
    const bool needs_file = program.min_bytes == UINT64_MAX;  // only a tuning file may choose it
    if (!needs_file) rows(program.collective, program.root).push_back({program.min_bytes, &program});
  }
  for (const TuningTable &table : tuning.tables) {
    if (&tables().allocations[table.allocation] != &allocation) continue;
    rows(table.collective, table.root) = table.rows;
    is_from_file_[index_of(table.collective, table.root)] = true;
    for (const TuningRow &row : table.rows) {
      if (row.weights == 0) continue;
      weights_.resize(allocation.nprograms);
      weights_[static_cast<size_t>(row.program - tables().programs) - allocation.first_program] = row.weights;
    }
  }
}

void Choices::widen(const Program &program, uint64_t begin, uint64_t end) {
  if (program.root >= 0 || begin >= end || is_from_file_[index_of(program.collective, -1)]) return;
  std::vector<TuningRow> wider_rows;
  const auto keep = [&](uint64_t min_bytes, const TuningRow &row) {
    wider_rows.push_back(row);
    wider_rows.back().min_bytes = min_bytes;
  };
  const auto replace = [&](uint64_t min_bytes, const TuningRow &row) {
    wider_rows.push_back({min_bytes, &program, 0, row.program});
  };
  const TuningRow *last = nullptr;  // applies from its min_bytes up to the next row
  for (const TuningRow &row : rows(program.collective, -1)) {
    // Split the last row where the range begins or ends within it.
    if (last != nullptr && last->min_bytes < begin && row.min_bytes > begin) replace(begin, *last);
    if (last != nullptr && last->min_bytes < end && row.min_bytes > end) keep(end, *last);
    if (row.min_bytes >= begin && row.min_bytes < end)
      replace(row.min_bytes, row);
    else
      keep(row.min_bytes, row);
    last = &row;
  }
  if (last == nullptr) return;
  if (last->min_bytes < begin) replace(begin, *last);
  if (last->min_bytes < end && end != UINT64_MAX) keep(end, *last);
  rows(program.collective, -1) = std::move(wider_rows);
}

const Program *Choices::find(Collective collective, int root, uint64_t bytes, FunctionRef<bool(const Program &)> can_run,
                             const Program **alternative) const {
  const size_t index = index_of(collective, root);
  if (index >= rows_.size()) return nullptr;
  const Program *program = nullptr;
  for (const TuningRow &row : rows_[index]) {
    if (row.min_bytes > bytes || !can_run(*row.program)) continue;
    program = row.program;
    if (alternative != nullptr) *alternative = row.alternative;
  }
  return program;
}

const char *machine_description() {
  static const auto *const text =
      new std::string(describe_machine());  // never freed: threads may use it while the process exits
  return text->c_str();
}

}  // namespace collc
