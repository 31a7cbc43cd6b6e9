#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace collc {
namespace {

const char *unless_empty(const char *text) { return text != nullptr && *text != '\0' ? text : nullptr; }

}  // namespace

const char *read_text(const char *name) { return unless_empty(std::getenv(name)); }

const char *read_path(const char *name) { return unless_empty(secure_getenv(name)); }

Status read_number(const char *name, double least, double most, double fallback, double *value) {
  *value = fallback;
  const char *text = read_text(name);
  if (text == nullptr) return {};
  char *end = nullptr;
  const double number = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(number) || number < least || number > most)
    return fail(ncclInvalidUsage, "%s=%.40s is not a number from %g to %g", name, text, least, most);
  *value = number;
  return {};
}

Status read_whole(const char *name, uint32_t most, uint32_t *value) {
  double number = 0;
  COLLC_RETURN_IF_FAILED(read_number(name, 0, most, 0, &number));
  if (number != std::floor(number)) return fail(ncclInvalidUsage, "%s=%.40s is not a whole number", name, read_text(name));
  *value = static_cast<uint32_t>(number);
  return {};
}

Status read_chunk(uint32_t *bytes) {
  constexpr uint32_t kMost = 64 << 20;
  COLLC_RETURN_IF_FAILED(read_whole("COLLC_CHUNK", kMost, bytes));
  if (*bytes % 16 == 0) return {};
  const uint32_t said = *bytes;
  *bytes = 0;
  return fail(ncclInvalidUsage, "COLLC_CHUNK=%u is no multiple of 16 bytes", said);
}

bool is_set(const char *name) {
  const char *text = read_text(name);
  return text != nullptr && !(text[0] == '0' && text[1] == '\0');
}

std::vector<std::string> names_with(const char *prefix) {
  std::vector<std::string> names;
  for (char **at = environ; at != nullptr && *at != nullptr; ++at) {
    const char *const equals = std::strchr(*at, '=');
    if (equals == nullptr || equals[1] == '\0' || std::strncmp(*at, prefix, std::strlen(prefix)) != 0) continue;
    names.emplace_back(*at, static_cast<size_t>(equals - *at));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> split_list(const std::string &text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',')
      words.emplace_back();
    else if (c != ' ')
      words.back() += c;
  }
  return words;
}

std::vector<std::string> read_list(const char *name) {
  const char *const text = read_text(name);
  return text == nullptr ? std::vector<std::string>() : split_list(text);
}

}  // namespace collc
