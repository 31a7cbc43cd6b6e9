#include "wire/tls.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "base/log.h"

namespace collc {
namespace {

constexpr size_t kRecord = 16 << 10;  // bytes of data in a record, TLS's maximum
// AES-GCM keys are good for 2^24.5 records (RFC 8446, section 5.5). A new key costs microseconds.
constexpr uint64_t kRekeyBytes = 16 << 20;
constexpr char kIdentity[] = "collc";

// Values of OpenSSL's headers, equal in all versions 3.x.
constexpr uint64_t kInitNoAtexit = 0x00080000;
constexpr int kCtrlMinVersion = 123, kCtrlMaxVersion = 124, kTls13 = 0x0304;
constexpr int kWantRead = 2, kWantWrite = 3;
constexpr int kBioFlush = 11, kBioRead = 1, kBioWrite = 2, kBioRetry = 8, kBioRetryMask = 15;
constexpr int kBioSourceSink = 0x400;

using ClientKey = unsigned (*)(void *ssl, const char *hint, char *identity, unsigned most_identity, unsigned char *key,
                               unsigned most_key);
using ServerKey = unsigned (*)(void *ssl, const char *identity, unsigned char *key, unsigned most_key);

struct OpenSsl {
  int (*OPENSSL_init_crypto)(uint64_t options, const void *settings);
  const char *(*OpenSSL_version)(int what);
  void (*ERR_clear_error)();
  unsigned long (*ERR_get_error)();
  const char *(*ERR_reason_error_string)(unsigned long error);
  void *(*BIO_meth_new)(int type, const char *name);
  int (*BIO_meth_set_read)(void *method, int (*read)(void *bio, char *data, int size));
  int (*BIO_meth_set_write)(void *method, int (*write)(void *bio, const char *data, int size));
  int (*BIO_meth_set_ctrl)(void *method, long (*control)(void *bio, int what, long number, void *more));
  void *(*BIO_new)(const void *method);
  void (*BIO_set_data)(void *bio, void *data);
  void *(*BIO_get_data)(void *bio);
  void (*BIO_set_init)(void *bio, int init);
  void (*BIO_set_flags)(void *bio, int flags);
  void (*BIO_clear_flags)(void *bio, int flags);
  const void *(*TLS_method)();
  void *(*SSL_CTX_new)(const void *method);
  long (*SSL_CTX_ctrl)(void *context, int what, long number, void *more);
  int (*SSL_CTX_set_ciphersuites)(void *context, const char *names);
  int (*SSL_CTX_set_num_tickets)(void *context, size_t number);
  void (*SSL_CTX_set_psk_client_callback)(void *context, ClientKey key);
  void (*SSL_CTX_set_psk_server_callback)(void *context, ServerKey key);
  void *(*SSL_new)(void *context);
  void (*SSL_free)(void *ssl);
  int (*SSL_set_ex_data)(void *ssl, int index, void *data);
  void *(*SSL_get_ex_data)(const void *ssl, int index);
  void (*SSL_set_bio)(void *ssl, void *in, void *out);
  void (*SSL_set_accept_state)(void *ssl);
  void (*SSL_set_connect_state)(void *ssl);
  int (*SSL_read)(void *ssl, void *data, int size);
  int (*SSL_write)(void *ssl, const void *data, int size);
  int (*SSL_pending)(const void *ssl);
  int (*SSL_get_error)(const void *ssl, int result);
  int (*SSL_key_update)(void *ssl, int type);
};

struct Library {
  OpenSsl api = {};
  void *context = nullptr, *method = nullptr;
  std::string problem;
};

template <typename Function>
void find(void *library, const char *name, Function *function, std::string *missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}
#define COLLC_FIND_SSL(name) find(library, #name, &api.name, &missing)

std::string find_all_of_ssl(void *library, OpenSsl *found) {
  OpenSsl &api = *found;
  std::string missing;
  COLLC_FIND_SSL(OPENSSL_init_crypto);
  COLLC_FIND_SSL(OpenSSL_version);
  COLLC_FIND_SSL(ERR_clear_error);
  COLLC_FIND_SSL(ERR_get_error);
  COLLC_FIND_SSL(ERR_reason_error_string);
  COLLC_FIND_SSL(BIO_meth_new);
  COLLC_FIND_SSL(BIO_meth_set_read);
  COLLC_FIND_SSL(BIO_meth_set_write);
  COLLC_FIND_SSL(BIO_meth_set_ctrl);
  COLLC_FIND_SSL(BIO_new);
  COLLC_FIND_SSL(BIO_set_data);
  COLLC_FIND_SSL(BIO_get_data);
  COLLC_FIND_SSL(BIO_set_init);
  COLLC_FIND_SSL(BIO_set_flags);
  COLLC_FIND_SSL(BIO_clear_flags);
  COLLC_FIND_SSL(TLS_method);
  COLLC_FIND_SSL(SSL_CTX_new);
  COLLC_FIND_SSL(SSL_CTX_ctrl);
  COLLC_FIND_SSL(SSL_CTX_set_ciphersuites);
  COLLC_FIND_SSL(SSL_CTX_set_num_tickets);
  COLLC_FIND_SSL(SSL_CTX_set_psk_client_callback);
  COLLC_FIND_SSL(SSL_CTX_set_psk_server_callback);
  COLLC_FIND_SSL(SSL_new);
  COLLC_FIND_SSL(SSL_free);
  COLLC_FIND_SSL(SSL_set_ex_data);
  COLLC_FIND_SSL(SSL_get_ex_data);
  COLLC_FIND_SSL(SSL_set_bio);
  COLLC_FIND_SSL(SSL_set_accept_state);
  COLLC_FIND_SSL(SSL_set_connect_state);
  COLLC_FIND_SSL(SSL_read);
  COLLC_FIND_SSL(SSL_write);
  COLLC_FIND_SSL(SSL_pending);
  COLLC_FIND_SSL(SSL_get_error);
  COLLC_FIND_SSL(SSL_key_update);
  return missing;
}

Library *opened = nullptr;  // never freed, because threads may outlive static objects
std::mutex &tls_mutex() {
  static auto *const mutex = new std::mutex;
  return *mutex;
}
bool tls_over = false;

}  // namespace

// Functions that the library calls. OpenSSL's own socket functions would raise SIGPIPE.
struct TlsChannel::Callbacks {
  static TlsChannel &of(void *bio) { return *static_cast<TlsChannel *>(opened->api.BIO_get_data(bio)); }

  static int transfer(void *bio, ssize_t n, int direction) {
    opened->api.BIO_clear_flags(bio, kBioRetryMask);
    if (n >= 0) return static_cast<int>(n);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
      opened->api.BIO_set_flags(bio, direction | kBioRetry);
    else
      of(bio).socket_error_ = errno;
    return -1;
  }
  static int read(void *bio, char *data, int size) {
    TlsChannel &channel = of(bio);
    const ssize_t n = recv(channel.fd_, data, static_cast<size_t>(size), MSG_DONTWAIT);
    channel.ended_ |= n == 0 && size > 0;
    return transfer(bio, n, kBioRead);
  }
  static int write(void *bio, const char *data, int size) {
    return transfer(bio, ::send(of(bio).fd_, data, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT), kBioWrite);
  }
  static long control(void *, int what, long, void *) { return what == kBioFlush ? 1 : 0; }

  static unsigned client_key(void *ssl, const char *, char *identity, unsigned most_identity, unsigned char *key,
                             unsigned most_key) {
    if (most_identity < sizeof kIdentity) return 0;
    std::memcpy(identity, kIdentity, sizeof kIdentity);
    return give(ssl, key, most_key);
  }
  static unsigned server_key(void *ssl, const char *identity, unsigned char *key, unsigned most_key) {
    return std::strcmp(identity, kIdentity) == 0 ? give(ssl, key, most_key) : 0;
  }
  static unsigned give(void *ssl, unsigned char *key, unsigned most_key) {
    const auto *const channel = static_cast<const TlsChannel *>(opened->api.SSL_get_ex_data(ssl, 0));
    if (most_key < channel->key_.size()) return 0;
    std::memcpy(key, channel->key_.data(), channel->key_.size());
    return static_cast<unsigned>(channel->key_.size());
  }

  static std::string prepare(Library *made) {
    const OpenSsl &api = made->api;
    // Connections may live longer than the library's cleanup at exit would allow.
    if (api.OPENSSL_init_crypto(kInitNoAtexit, nullptr) != 1) return "it does not start";
    made->method = api.BIO_meth_new(kBioSourceSink, "collc");
    made->context = api.SSL_CTX_new(api.TLS_method());
    if (made->method == nullptr || made->context == nullptr) return "it makes no context";
    api.BIO_meth_set_read(made->method, read);
    api.BIO_meth_set_write(made->method, write);
    api.BIO_meth_set_ctrl(made->method, control);
    if (api.SSL_CTX_ctrl(made->context, kCtrlMinVersion, kTls13, nullptr) != 1 ||
        api.SSL_CTX_ctrl(made->context, kCtrlMaxVersion, kTls13, nullptr) != 1 ||
        api.SSL_CTX_set_ciphersuites(made->context, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") != 1)
      return "it has no TLS 1.3";
    api.SSL_CTX_set_num_tickets(made->context, 0);
    api.SSL_CTX_set_psk_client_callback(made->context, client_key);
    api.SSL_CTX_set_psk_server_callback(made->context, server_key);
    return "";
  }
};

Status TlsChannel::load() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (opened == nullptr) {
    opened = new Library;
    void *const library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    const char *const reason = library == nullptr ? dlerror() : nullptr;
    if (library == nullptr) {
      opened->problem = printable(reason != nullptr ? reason : "libssl.so.3");
    } else {
      const std::string missing = find_all_of_ssl(library, &opened->api);
      opened->problem = missing.empty() ? Callbacks::prepare(opened) : "it has no " + missing;
    }
    if (opened->problem.empty()) log(LogLevel::kInfo, "tcp: TLS 1.3 by %s", opened->api.OpenSSL_version(0));
  }
  if (opened->problem.empty()) return {};
  return fail(ncclSystemError, "COLLC_NET_TLS needs OpenSSL 3, libssl.so.3 (Debian: libssl3): %s", opened->problem.c_str());
}

void TlsChannel::end() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  tls_over = true;
}

TlsChannel::TlsChannel(int fd, bool accepts, const Proof &key) : fd_(fd), key_(key), staged_(kRecord) {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (tls_over || opened == nullptr || !opened->problem.empty()) return;
  const OpenSsl &api = opened->api;
  void *const bio = api.BIO_new(opened->method);
  ssl_ = bio != nullptr ? api.SSL_new(opened->context) : nullptr;
  if (ssl_ == nullptr) return;
  api.BIO_set_data(bio, this);
  api.BIO_set_init(bio, 1);
  api.SSL_set_bio(ssl_, bio, bio);
  api.SSL_set_ex_data(ssl_, 0, this);
  if (accepts)
    api.SSL_set_accept_state(ssl_);
  else
    api.SSL_set_connect_state(ssl_);
}

TlsChannel::~TlsChannel() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (ssl_ != nullptr && !tls_over) opened->api.SSL_free(ssl_);
}

void TlsChannel::note(int result) {
  const int error = opened->api.SSL_get_error(ssl_, result);
  if (error == kWantRead || error == kWantWrite) {
    errno = EAGAIN;
    return;
  }
  if (socket_error_ != 0) {
    errno = socket_error_;
    return;
  }
  const char *const reason = opened->api.ERR_reason_error_string(opened->api.ERR_get_error());
  if (why_.empty()) why_ = std::string("TLS: ") + (reason != nullptr ? reason : "the connection is in no order");
  errno = EPROTO;
}

ssize_t TlsChannel::receive(char *data, size_t size) {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (ssl_ == nullptr || tls_over) {
    why_ = "TLS: no memory, or the process is ending";
    errno = tls_over ? EAGAIN : EPROTO;
    return -1;
  }
  opened->api.ERR_clear_error();
  const int n = opened->api.SSL_read(ssl_, data, static_cast<int>(std::min<size_t>(size, INT32_MAX)));
  if (n > 0) return n;
  if (ended_) return 0;
  note(n);
  return -1;
}

bool TlsChannel::has_more() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  return ssl_ != nullptr && !tls_over && opened->api.SSL_pending(ssl_) > 0;
}

// Writes the waiting record, or sets errno.
void TlsChannel::write_staged() {
  opened->api.ERR_clear_error();
  const int n = opened->api.SSL_write(ssl_, staged_.data(), static_cast<int>(staged_size_));
  if (n <= 0) return note(n);
  since_rekey_ += staged_size_;
  staged_size_ = 0;
  if (since_rekey_ < kRekeyBytes) return;
  since_rekey_ = 0;
  opened->api.SSL_key_update(ssl_, 0);
}

bool TlsChannel::flush() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  errno = EAGAIN;
  if (ssl_ != nullptr && !tls_over && staged_size_ > 0) write_staged();
  return staged_size_ == 0;
}

ssize_t TlsChannel::send(const iovec *pieces, size_t count) {
  if (!flush()) return -1;
  size_t taken = 0;
  for (size_t i = 0; i < count && taken < kRecord; ++i) {
    const size_t part = std::min(pieces[i].iov_len, kRecord - taken);
    std::memcpy(staged_.data() + taken, pieces[i].iov_base, part);
    taken += part;
  }
  staged_size_ = taken;
  flush();  // the next call reports an error
  return static_cast<ssize_t>(taken);
}

}  // namespace collc
