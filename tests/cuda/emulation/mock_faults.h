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
// Returns true if the driver enforces a rule: all rules except those that MOCK_WITHOUT lists.
inline bool rule(const char *name) { return !lists("MOCK_WITHOUT", name); }
// Returns true if MOCK_FAULT lists this fault of a careless library.
inline bool fault(const char *name) { return lists("MOCK_FAULT", name); }

}  // namespace mock
