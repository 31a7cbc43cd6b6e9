// Rules of the mock driver that tests can switch off, and faults of a library that they can plant between it and the driver.
// tests/cuda/test_mock_rules.py has a fault for each rule, found with it and missed without it.
#pragma once
#include <cstdlib>
#include <string>

namespace mock {

inline bool lists(const char *variable, const char *word) {
  const char *text = std::getenv(variable);
  return text != nullptr && (std::string(",") + text + ",").find(std::string(",") + word + ",") != std::string::npos;
}
// Whether the driver keeps to a rule: all but those that MOCK_WITHOUT lists.
inline bool rule(const char *name) { return !lists("MOCK_WITHOUT", name); }
// Whether MOCK_FAULT lists what a careless library would do.
inline bool fault(const char *name) { return lists("MOCK_FAULT", name); }

}  // namespace mock
