// The type of serialized messages: control messages between ranks, bootstrap messages and proofs.
#pragma once
#include <vector>

namespace collc {

using Bytes = std::vector<unsigned char>;

}  // namespace collc
