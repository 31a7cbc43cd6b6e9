#include "plan/tuning.h"

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

constexpr const char *kFormat = "collc-tuning/1";
constexpr size_t kMostLine = 512;

// The begin of a text of a file, for a message.
std::string shown(const std::string &text) { return printable(text.substr(0, 60)); }

std::string field_of_cpuinfo(const std::string &line) {
  const size_t colon = line.find(':');
  const size_t start = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? "" : line.substr(start);
}

// The model of the CPUs and how many there are: machines that agree in this may share a file.
std::string describe_machine() {
  std::string model;
  uint32_t cpus = 0;
  if (std::FILE *file = std::fopen("/proc/cpuinfo", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      line[std::strcspn(line, "\n")] = '\0';
      if (std::strncmp(line, "processor", 9) == 0) ++cpus;
      const bool names = std::strncmp(line, "model name", 10) == 0 || std::strncmp(line, "CPU part", 8) == 0;
      if (names && model.empty()) model = field_of_cpuinfo(line);
    }
    std::fclose(file);
  }
  std::string text = std::to_string(cpus) + " x ";
  for (const char c : model.empty() ? std::string("unknown CPU") : model)
    if (c > ' ' ? c <= '~' && c != '#' : c == ' ' && text.back() != ' ') text += c;
  while (text.back() == ' ') text.pop_back();
  return text.substr(0, 200);
}

// The build id in the manifest. Its keys begin a line, and text in JSON has no line breaks: nothing else looks like this.
std::string build_id() {
  const char *const key = "\n \"build_id\": \"";
  const char *const at = std::strstr(collc_manifest, key);
  if (at == nullptr) return "";
  const char *const begin = at + std::strlen(key);
  return std::string(begin, std::strcspn(begin, "\""));
}

bool read_count(const std::string &word, uint64_t most, uint64_t *value) {
  if (word.empty() || word.size() > 19 || word.find_first_not_of("0123456789") != std::string::npos) return false;
  *value = std::strtoull(word.c_str(), nullptr, 10);
  return *value <= most;
}

bool read_collective(const std::string &word, Collective *collective) {
  for (uint32_t c = 0; c <= static_cast<uint32_t>(Collective::kSendRecv); ++c)
    if (word == name_of(static_cast<Collective>(c))) {
      *collective = static_cast<Collective>(c);
      return true;
    }
  return false;
}

// Reads a file line by line; every method fails with a sentence that says which line.
class Reader {
 public:
  explicit Reader(const std::string &text) : text_(text) {}

  Status read(Tuning *tuning) {
    std::string rest;
    if (!next() || line_ != kFormat)
      return line_.rfind("collc-tuning/", 0) == 0
                 ? fail(ncclInvalidUsage, "is of version %s, this library reads %s", shown(line_).c_str(), kFormat)
                 : fail(ncclInvalidUsage, "is no tuning file: it does not begin with %s", kFormat);
    if (!next() || !after("library ", &rest)) return wrong("the library's build id");
    if (rest != build_id())
      return fail(ncclInvalidUsage, "is for another library: build %s, this one is %s", shown(rest).c_str(),
                  build_id().c_str());
    if (!next() || !after("machine ", &rest)) return wrong("the machine");
    if (rest != machine_description())
      return fail(ncclInvalidUsage, "is for another machine: %s, this one is %s", shown(rest).c_str(), machine_description());
    uint64_t rows = 0;
    while (next()) {
      if (after("table ", &rest)) {
        COLLC_RETURN_IF_FAILED(table(rest, tuning));
      } else if (after("end ", &rest)) {
        uint64_t promised = 0;
        if (!read_count(rest, UINT64_MAX, &promised) || promised != rows) return wrong("the number of rows");
        if (next()) return wrong("nothing after the end");
        return check(*tuning);
      } else {
        COLLC_RETURN_IF_FAILED(row(tuning));
        ++rows;
      }
    }
    return broken_.empty() ? fail(ncclInvalidUsage, "is truncated: it has no end")
                           : fail(ncclInvalidUsage, "%s", broken_.c_str());
  }

 private:
  // The next line that says something, without its comment and the spaces around it.
  bool next() {
    while (at_ < text_.size() && broken_.empty()) {
      const size_t end = text_.find('\n', at_);
      // A last line that was cut off is not believed.
      if (end == std::string::npos) return false;
      line_ = text_.substr(at_, std::min(end - at_, kMostLine));
      if (end - at_ > kMostLine) broken_ = format("line %u is too long", number_ + 1);
      at_ = end + 1;
      ++number_;
      line_.resize(std::min(line_.size(), line_.find('#')));
      const size_t first = line_.find_first_not_of(" \t\r");
      if (first == std::string::npos) continue;
      line_ = line_.substr(first, line_.find_last_not_of(" \t\r") + 1 - first);
      return broken_.empty();
    }
    return false;
  }

  bool after(const char *word, std::string *rest) const {
    const size_t size = std::strlen(word);
    if (line_.compare(0, size, word) != 0) return false;
    *rest = line_.substr(size);
    return true;
  }

  Status wrong(const char *expected) const {
    return fail(ncclInvalidUsage, "line %u, \"%s\": expected %s", number_, shown(line_).c_str(), expected);
  }

  Status table(const std::string &rest, Tuning *tuning) {
    std::istringstream words(rest);
    std::string allocation, collective, root, more;
    words >> allocation >> collective >> root;
    TuningTable made = {0, Collective::kAllReduce, -1, {}};
    uint64_t number = 0;
    if (words >> more || !read_count(allocation, UINT32_MAX, &number) || number >= tables().nallocations)
      return wrong("one of the library's allocations, a collective and a root or -");
    made.allocation = static_cast<uint32_t>(number);
    if (!read_collective(collective, &made.collective)) return wrong("a collective");
    if (root != "-") {
      if (!read_count(root, UINT32_MAX, &number) || number >= tables().allocations[made.allocation].nranks)
        return wrong("a root or -");
      made.root = static_cast<int>(number);
    }
    for (const TuningTable &one : tuning->tables)
      if (one.allocation == made.allocation && one.collective == made.collective && one.root == made.root)
        return wrong("each table once");
    tuning->tables.push_back(std::move(made));
    return {};
  }

  Status row(Tuning *tuning) {
    std::istringstream words(line_);
    std::string bytes, program, classes, more;
    words >> bytes >> program >> classes;
    if (tuning->tables.empty()) return wrong("a table before its rows");
    TuningTable &into = tuning->tables.back();
    const Allocation &allocation = collc::tables().allocations[into.allocation];
    uint64_t least = 0, number = 0;
    if (words >> more || !read_count(bytes, UINT64_MAX - 1, &least) || !read_count(program, UINT32_MAX, &number))
      return wrong("bytes and a program");
    if (into.rows.empty() ? least != 0 : least <= into.rows.back().min_bytes) return wrong("rows from 0 bytes on, ascending");
    if (number >= allocation.nprograms) return wrong("one of the allocation's programs");
    const Program &chosen = collc::tables().programs[allocation.first_program + number];
    if (chosen.collective != into.collective || chosen.root != into.root)
      return wrong("a program of the table's collective and root");
    uint32_t weights = 0;
    if (!classes.empty() && (!parse_weights(classes, &weights) || restrict_weights(chosen, weights) != weights))
      return wrong("weights of classes that the program is cut into, as in nvlink:3,pcie:1");
    for (const TuningRow &other : into.rows)
      if (other.program == &chosen && other.weights != weights) return wrong("one weighting of each program");
    into.rows.push_back({least, &chosen, weights});
    return {};
  }

  Status check(const Tuning &tuning) const {
    for (const TuningTable &table : tuning.tables)
      if (table.rows.empty()) return fail(ncclInvalidUsage, "has a table of %s without rows", name_of(table.collective));
    return {};
  }

  const std::string &text_;
  size_t at_ = 0;
  unsigned number_ = 0;
  std::string line_, broken_;
};

}  // namespace

uint64_t Tuning::digest() const {
  if (tables.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325;
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
  const Status status = Reader(text).read(tuning);
  if (!status.ok()) tuning->tables.clear();
  return status;
}

Tuning find_tuning(bool reports) {
  Tuning tuning;
  const char *path = read_path("COLLC_TUNING");
  if (path == nullptr) return tuning;
  const Status status = read_tuning(path, &tuning);
  if (status.ok() || !reports) return tuning;
  say_once("COLLC_TUNING=" + std::string(path).substr(0, 200) + " " + status.text() + ": the embedded table stays in use");
  return tuning;
}

Choices::Choices(const Allocation &allocation, const Tuning &tuning)
    : roots_(allocation.nranks + 1), rows_(size_t{kCollectives} * roots_), given_(rows_.size()) {
  for (uint32_t p = 0; p < allocation.nprograms; ++p) {
    const Program &program = tables().programs[allocation.first_program + p];
    if (program.min_bytes != UINT64_MAX) rows(program.collective, program.root).push_back({program.min_bytes, &program, 0});
  }
  for (const TuningTable &table : tuning.tables) {
    if (&tables().allocations[table.allocation] != &allocation) continue;
    rows(table.collective, table.root) = table.rows;
    given_[place_of(table.collective, table.root)] = true;
    for (const TuningRow &row : table.rows) {
      if (row.weights == 0) continue;
      weights_.resize(allocation.nprograms);
      weights_[static_cast<size_t>(row.program - tables().programs) - allocation.first_program] = row.weights;
    }
  }
}

void Choices::widen(const Program &program, uint64_t begin, uint64_t end) {
  if (program.root >= 0 || begin >= end || given_[place_of(program.collective, -1)]) return;
  std::vector<TuningRow> &all = rows(program.collective, -1), wider;
  const auto add = [&wider](uint64_t from, const TuningRow &row, const Program *instead) {
    wider.push_back(instead == nullptr ? row : TuningRow{from, instead, 0, row.program});
    wider.back().min_bytes = from;
  };
  const TuningRow *last = nullptr;  // what runs at the border that comes next
  for (const TuningRow &row : all) {
    if (last != nullptr && last->min_bytes < begin && row.min_bytes > begin) add(begin, *last, &program);
    if (last != nullptr && last->min_bytes < end && row.min_bytes > end) add(end, *last, nullptr);
    add(row.min_bytes, row, row.min_bytes >= begin && row.min_bytes < end ? &program : nullptr);
    last = &row;
  }
  if (last == nullptr) return;
  if (last->min_bytes < begin) add(begin, *last, &program);
  if (last->min_bytes < end && end != UINT64_MAX) add(end, *last, nullptr);
  all = std::move(wider);
}

std::vector<TuningRow> &Choices::rows(Collective collective, int root) { return rows_[place_of(collective, root)]; }

const Program *Choices::find(Collective collective, int root, uint64_t bytes, FunctionRef<bool(const Program &)> runs,
                             const Program **otherwise) const {
  const size_t place = place_of(collective, root);
  if (place >= rows_.size()) return nullptr;
  const Program *chosen = nullptr;
  for (const TuningRow &row : rows_[place]) {
    if (row.min_bytes > bytes || !runs(*row.program)) continue;
    chosen = row.program;
    if (otherwise != nullptr) *otherwise = row.alternative;
  }
  return chosen;
}

const char *machine_description() {
  static const auto *const text = new std::string(describe_machine());
  return text->c_str();
}

}  // namespace collc
