#include "environment.h"

#include <cmath>
#include <cstdlib>

namespace collc {

Status read_number(const char *name, double least, double most, double fallback, double *value) {
  *value = fallback;
  const char *text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  char *end = nullptr;
  const double number = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(number) || number < least || number > most)
    return fail(ncclInvalidUsage, "%s=%.40s is not a number from %g to %g", name, text, least, most);
  *value = number;
  return {};
}

bool is_set(const char *name) {
  const char *text = std::getenv(name);
  return text != nullptr && *text != '\0' && !(text[0] == '0' && text[1] == '\0');
}

std::vector<std::string> read_list(const char *name) {
  std::vector<std::string> words;
  const char *text = std::getenv(name);
  if (text == nullptr || *text == '\0') return words;
  words.emplace_back();
  for (const char *at = text; *at != '\0'; ++at) {
    if (*at == ',')
      words.emplace_back();
    else if (*at != ' ')
      words.back() += *at;
  }
  return words;
}

}  // namespace collc
