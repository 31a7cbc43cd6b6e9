#include "bootstrap/joint_attempt.h"

#include <algorithm>
#include <string>

namespace collc {
namespace {

constexpr size_t kMostWords = 1000;

// Each message starts with an ncclResult_t in one byte. After a failure, the text of the error follows instead of the message
// of the round.
Bytes failure_message(const Status &failure) {
  const std::string words = failure.text().substr(0, kMostWords);
  Bytes message{static_cast<unsigned char>(failure.code())};
  message.insert(message.end(), words.begin(), words.end());
  return message;
}

}  // namespace

Status JointAttempt::exchange_bytes(const Bytes &message, std::vector<Bytes> *all, const Status &mine) {
  if (!lost_.ok()) return lost_;
  if (!failure_.ok()) return failure_;
  Bytes whole = mine.ok() ? Bytes{ncclSuccess} : failure_message(mine);
  if (mine.ok()) whole.insert(whole.end(), message.begin(), message.end());
  lost_ = rendezvous_.exchange_bytes(whole, all);
  COLLC_RETURN_IF_FAILED(lost_);
  for (size_t r = 0; r < all->size(); ++r) {
    Bytes &one = (*all)[r];
    if (one.empty()) return lost_ = fail(ncclInternalError, "the bootstrap received an invalid message");
    const auto code = static_cast<ncclResult_t>(one[0]);
    one.erase(one.begin());
    if (code == ncclSuccess || !failure_.ok()) continue;
    const std::string words(one.begin(), one.end());
    failure_ = Status(code, r == rank_ ? words : format("rank %zu: ", r) + words);
  }
  return failure_;
}

Status JointAttempt::conclude(const Status &mine) {
  std::vector<Bytes> none;
  const Status all = exchange_bytes({}, &none, mine);
  return lost_.ok() || mine.ok() ? all : mine;
}

}  // namespace collc
