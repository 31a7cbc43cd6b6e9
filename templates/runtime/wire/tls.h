// TLS 1.3 over a connected socket, by the system's OpenSSL, with a key that both ends know (PSK), without certificates.
//
// The library is loaded at run time. The key exchange is psk_dhe_ke: recorded traffic stays secret even if the communicator's
// secret becomes known later.
//
// A mutex serializes all calls of OpenSSL in a process. No function waits for the peer.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <string>

#include "base/bytes.h"
#include "base/proof.h"
#include "base/status.h"

namespace collc {

class TlsChannel {
 public:
  // Loads the library once per process. Fails with the reason.
  static Status load();
  // For exit(): the library is not called any more.
  static void end();

  // `fd`: non-blocking; the caller owns it and keeps it open as long as this object lives. `accepts` is true at exactly one
  // end.
  TlsChannel(int fd, bool accepts, const Proof &key);
  ~TlsChannel();
  TlsChannel(const TlsChannel &) = delete;
  TlsChannel &operator=(const TlsChannel &) = delete;

  // receive() and send() have the results of recv() and sendmsg(): the number of bytes, 0 at the end (receive), or -1 and
  // errno. After EPROTO, why() has the reason. Both perform the handshake. send() may keep the bytes that it has accepted;
  // call flush() until it returns true.
  ssize_t receive(char *data, size_t size);
  ssize_t send(const iovec *pieces, size_t count);
  bool flush();
  bool is_flushed() const { return record_size_ == 0; }
  // Returns whether there is decrypted data, which a poll of the socket does not show.
  bool has_more();
  const std::string &why() const { return why_; }

 private:
  struct Callbacks;

  // Sets errno for a library call that has returned `result`.
  void set_errno(int result);
  void write_record();

  int fd_;
  Proof key_;
  void *ssl_ = nullptr;
  Bytes record_;  // one record that waits to be written
  size_t record_size_ = 0;
  uint64_t bytes_since_rekey_ = 0;  // bytes sent since the last change of the key
  bool has_peer_ended_ = false;  // the peer sends no more
  int socket_error_ = 0;
  std::string why_;
};

}  // namespace collc
