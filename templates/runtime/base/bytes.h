// Messages of the runtime, as they travel.
#pragma once
#include <vector>

namespace collc {

using Bytes = std::vector<unsigned char>;

}  // namespace collc
