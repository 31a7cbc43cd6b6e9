#include "wire/foreign.h"

namespace collc {
namespace {

std::recursive_mutex &foreign_mutex() {
  static auto *const mutex = new std::recursive_mutex;  // outlives every thread
  return *mutex;
}
bool foreign_over = false;

}  // namespace

ForeignTurn::ForeignTurn() : lock_(foreign_mutex()) {}
bool ForeignTurn::over() { return foreign_over; }
void ForeignTurn::end() {
  const ForeignTurn turn;
  foreign_over = true;
}

}  // namespace collc
