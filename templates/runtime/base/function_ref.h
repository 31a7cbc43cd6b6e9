// A reference to a callable, valid during the call that receives it; nothing is copied or allocated. A function that takes a
// FunctionRef is compiled once, whereas a function template is compiled once per caller.
#pragma once
#include <memory>
#include <type_traits>
#include <utility>

namespace collc {

template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <class Callable, class = std::enable_if_t<!std::is_same_v<std::decay_t<Callable>, FunctionRef>>>
  FunctionRef(Callable &&callable)
      : callable_(const_cast<void *>(static_cast<const void *>(std::addressof(callable)))),
        call_([](void *lent, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable> *>(lent))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(callable_, std::forward<Arguments>(arguments)...); }

 private:
  void *callable_;
  Result (*call_)(void *, Arguments...);
};

}  // namespace collc
