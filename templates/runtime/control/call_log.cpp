#include "control/call_log.h"

#include <algorithm>

#include "collc/collective_traits.h"

namespace collc {
namespace {

const char *type_name(uint64_t type) {
  static const char *const names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                      "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return type < sizeof names / sizeof *names ? names[type] : "an unknown type";
}

const char *operation_name(uint64_t operation) {
  static const char *const names[] = {"sum", "product", "maximum", "minimum"};
  if ((operation & kAverage) != 0) return "average";
  if ((operation & kScaled) != 0) return "scaled sum";
  return operation < 4 ? names[operation] : "an unknown operation";
}

std::string describe(uint64_t number, uint32_t rank, const CallLog::Noted &call) {
  return format("call %llu of rank %u is %s", static_cast<unsigned long long>(number), rank,
                describe_call(call.what, call.count).c_str());
}

}  // namespace

std::string describe_call(uint64_t what, uint64_t count) {
  const auto collective = static_cast<Collective>(what & 0xff);
  const uint64_t operation = what >> 16 & 0xffff;
  const auto root = static_cast<int>(what >> 32) - 1;
  const std::string elements =
      format("of %llu elements of %s", static_cast<unsigned long long>(count), type_name(what >> 8 & 0xff));
  if (collective == Collective::kSendRecv)
    return format(operation == 1 ? "a receive %s from rank %d" : "a send %s to rank %d", elements.c_str(), root);
  std::string text = format("%s %s", name_of(collective), elements.c_str());
  if (traits(collective).reduces) text += format(" (%s)", operation_name(operation));
  if (root >= 0) text += format(", root %d", root);
  return text;
}

std::string describe_signature(uint64_t signature) {
  if (!is_transfer(signature)) return "a part of a collective";
  return format("%llu elements of %s", static_cast<unsigned long long>(count_told(signature)),
                type_name(static_cast<uint64_t>(type_told(signature))));
}

bool CallLog::find(uint64_t number, Noted *noted) const {
  const CallRecord &record = records_[number & mask_];
  if (number == 0 || record.number.load(std::memory_order_acquire) != number) return false;
  noted->history = record.history.load(std::memory_order_acquire);
  noted->count = record.count.load(std::memory_order_acquire);
  noted->what = record.what.load(std::memory_order_acquire);
  noted->begun = record.begun.load(std::memory_order_acquire);
  noted->ended = record.ended.load(std::memory_order_acquire);
  return record.number.load(std::memory_order_relaxed) == number;
}

uint64_t CallLog::newest() const {
  uint64_t last = 0;
  for (uint32_t at = 0; at < depth(); ++at) last = std::max(last, records_[at].number.load(std::memory_order_acquire));
  return last;
}

bool CallLog::forgot(uint64_t number) const { return records_[number & mask_].number.load(std::memory_order_acquire) > number; }

Status compare_calls(const Caller &one, const Caller &other) {
  const uint64_t last = std::min(one.newest, other.newest), newest = std::max(one.newest, other.newest);
  const uint64_t depth = one.log.depth(), oldest = newest > depth ? newest - depth : 0;
  CallLog::Noted mine, theirs;
  uint64_t number = last;
  while (number > oldest && !(one.log.find(number, &mine) && other.log.find(number, &theirs))) --number;
  if (number <= oldest || mine.history == theirs.history) return {};
  // Goes back to the first difference.
  CallLog::Noted earlier_mine, earlier_theirs;
  while (number - 1 > oldest && one.log.find(number - 1, &earlier_mine) && other.log.find(number - 1, &earlier_theirs) &&
         earlier_mine.history != earlier_theirs.history) {
    --number;
    mine = earlier_mine;
    theirs = earlier_theirs;
  }
  const bool alike = mine.what == theirs.what && mine.count == theirs.count;
  return fail(ncclInvalidUsage, "calls differ%s: %s; %s", alike ? " since an earlier one" : "",
              describe(number, one.rank, mine).c_str(), describe(number, other.rank, theirs).c_str());
}

}  // namespace collc
