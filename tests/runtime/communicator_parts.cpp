// CallNumbers and Scalings (communicator/): prints "ok", or the line of the first check that fails.
#include <cstdio>
#include <cstring>

#include "communicator/call_numbers.h"
#include "communicator/scalings.h"

using namespace collc;

#define EXPECT(holds)                   \
  if (!(holds)) {                       \
    std::printf("line %d\n", __LINE__); \
    return 1;                           \
  }

static Call call_of(Work work, Collective collective, uint64_t count) {
  Call call = {};
  call.work = work;
  call.collective = collective;
  call.count = count;
  call.type = ncclFloat32;
  call.root = -1;
  return call;
}

static int numbers() {
  CallNumbers one, same, other;
  Call a = call_of(Work::kProgram, Collective::kAllReduce, 8), b = a, c = a;
  c.count = 9;
  one.count(&a), same.count(&b), other.count(&c);
  EXPECT(a.number == 1 && b.number == 1 && c.number == 1);
  EXPECT(a.signature == b.signature && a.signature != c.signature);
  // A difference stays: later equal calls have other signatures.
  b = a, c = a;
  one.count(&a), same.count(&b), other.count(&c);
  EXPECT(a.number == 2 && a.signature == b.signature && a.signature != c.signature);
  // Sends and receives count for nobody. Both sides have one signature.
  Call send = call_of(Work::kSend, Collective::kSendRecv, 8), receive = call_of(Work::kReceive, Collective::kSendRecv, 8);
  one.count(&send), same.count(&receive);
  EXPECT(send.number == 0 && send.signature == receive.signature && send.packed_call != receive.packed_call);
  one.count(&a);
  EXPECT(a.number == 3);
  // The transfers of one collective have one number.
  Call first = call_of(Work::kSend, Collective::kAllToAll, 8), next = first;
  next.is_continuation = true;
  one.count(&first), one.count(&next);
  EXPECT(first.number == 4 && next.number == 4 && first.signature == next.signature);
  return 0;
}

static int scalings() {
  Scalings all;
  float factor = 2;
  const ncclRedOp_t now = all.add(&factor, ncclFloat32, true), later = all.add(&factor, ncclFloat32, false);
  EXPECT(now >= ncclNumOps && later >= ncclNumOps && now != later);
  factor = 3;
  float read = 0;
  Operation operation;
  EXPECT(all.apply(now, ncclFloat32, false, &operation).ok() && operation.has_scale && operation.kind == ncclSum);
  std::memcpy(&read, operation.scale, sizeof read);
  EXPECT(read == 2);
  operation = {};
  EXPECT(all.apply(later, ncclFloat32, false, &operation).ok() && operation.scale_address == nullptr);
  std::memcpy(&read, operation.scale, sizeof read);
  EXPECT(read == 3);
  operation = {};
  EXPECT(all.apply(later, ncclFloat32, true, &operation).ok() && operation.scale_address == &factor);
  EXPECT(!all.apply(now, ncclFloat64, false, &operation).ok());
  EXPECT(all.remove(now).ok() && !all.remove(now).ok() && !all.apply(now, ncclFloat32, false, &operation).ok());
  EXPECT(all.add(&factor, ncclInt32, true) == now);  // a free handle is used again
  EXPECT(!all.apply(ncclSum, ncclFloat32, false, &operation).ok());
  return 0;
}

int main() {
  if (numbers() != 0 || scalings() != 0) return 1;
  std::puts("ok");
}
