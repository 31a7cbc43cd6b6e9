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

std::vector<std::string> declared_names() {
  std::vector<std::string> gpus;
  const char *text = std::getenv("COLLC_GPUS");
  if (text == nullptr || *text == '\0') return gpus;
  gpus.emplace_back();
  for (const char *at = text; *at != '\0'; ++at) {
    if (*at == ',')
      gpus.emplace_back();
    else if (*at != ' ')
      gpus.back() += *at;
  }
  return gpus;
}

}  // namespace collc
