#include "wire/control.h"

#include <poll.h>

#include <algorithm>

#include "base/clock.h"

namespace collc {
namespace {

constexpr uint32_t kMaxAddressBytes = 1 << 20;
constexpr int kLookMs = 20;
constexpr int64_t kVerdictMs = 2000;
constexpr int64_t kLifeMs = 1000;

}  // namespace

Status AddressSink::place(const WireHead &head, char **body) {
  if (head.kind != static_cast<uint32_t>(ControlNote::kAddress) || head.bytes > kMaxAddressBytes || !address_.empty())
    return fail(ncclInternalError, "it sent %u bytes in place of an address", head.bytes);
  address_.resize(head.bytes);
  *body = reinterpret_cast<char *>(address_.data());
  return {};
}

Status AddressSink::take(const WireHead &head) {
  complete_ |= head.kind == static_cast<uint32_t>(ControlNote::kAddress);
  if (head.kind == static_cast<uint32_t>(ControlNote::kFinished)) announced_ = head.number;
  return {};
}

Status exchange_addresses(const WireMeeting &meeting, int64_t deadline_ms,
                          const std::vector<std::unique_ptr<WireConnection>> &controls, const Bytes &own,
                          std::vector<AddressSink> *peers) {
  for (const auto &control : controls)
    if (control != nullptr)
      control->send(control_note(ControlNote::kAddress, 0, static_cast<uint32_t>(own.size())), own.data());
  for (int64_t beat_ms = 0;;) {
    // A peer takes silence for the end of the connection.
    const bool beats = now_ms() - beat_ms >= kLifeMs;
    if (beats) beat_ms = now_ms();
    bool waits = false;
    std::vector<pollfd> polled;
    for (size_t m = 0; m < controls.size(); ++m) {
      if (controls[m] == nullptr) continue;
      if (beats) controls[m]->send(control_note(ControlNote::kBeat, 0), nullptr);
      bool moved = false, ended = false;
      const Status status = controls[m]->progress((*peers)[m], &moved, &ended);
      // A peer whose address is here may go on and end at any time; the proxy thread then detects it.
      if (!status.ok() && !(*peers)[m].complete()) return status;
      if (!status.ok()) continue;
      waits |= !(*peers)[m].complete() || controls[m]->queued_bytes() > 0;
      controls[m]->add_to(&polled);
    }
    if (!waits) return {};
    if (meeting.stop()) return fail(ncclRemoteError, "a rank left while machines were joined");
    if (now_ms() >= deadline_ms)
      return fail(ncclSystemError, "no address of UCX came after %.0f s from every machine", meeting.seconds);
    poll(polled.data(), polled.size(), kLookMs);
  }
}

Status after_verdict(const WireMeeting &meeting, int64_t deadline_ms, const Status &status) {
  const int64_t until = std::min(deadline_ms, now_ms() + kVerdictMs);
  while (!status.ok() && !meeting.stop() && now_ms() < until) poll(nullptr, 0, kLookMs);
  return status;
}

}  // namespace collc
