// TLS 1.3 over a connected socket, by the OpenSSL of the system, with a key that both ends have already: no certificates.
//
// The library is opened at run time. The key exchange is that of psk_dhe_ke: what was recorded stays secret even when the
// communicator's secret becomes known later.
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
  // Opens the library, once; fails with the reason.
  static Status load();
  // The process exits: the library is called no more.
  static void end();

  // `fd`: not blocking; stays the caller's, and open for as long as this lives. One end accepts, the other one does not.
  TlsChannel(int fd, bool accepts, const Proof &key);
  ~TlsChannel();
  TlsChannel(const TlsChannel &) = delete;
  TlsChannel &operator=(const TlsChannel &) = delete;

  // As recv() and sendmsg(): bytes, 0 at the end, or -1 and errno; EPROTO: why() says what is wrong. The handshake is part of
  // both. What send() has taken may wait here: flush() until it is true.
  ssize_t receive(char *data, size_t size);
  ssize_t send(const iovec *pieces, size_t count);
  bool flush();
  bool flushed() const { return staged_size_ == 0; }
  // What has come and was decrypted, and shows on no socket.
  bool has_more();
  const std::string &why() const { return why_; }

 private:
  struct Callbacks;

  // errno of a call of the library that has returned `result`.
  void note(int result);
  void write_staged();

  int fd_;
  Proof key_;
  void *ssl_ = nullptr;
  Bytes staged_;  // one record
  size_t staged_size_ = 0;
  uint64_t since_rekey_ = 0;  // bytes
  bool ended_ = false;  // the peer sends no more
  int socket_error_ = 0;
  std::string why_;
};

}  // namespace collc
