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
void load_symbol(void *library, const char *name, Function *function, std::string *missing_symbol) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing_symbol->empty()) *missing_symbol = name;
}
#define COLLC_FIND_SSL(name) load_symbol(library, #name, &api.name, &missing_symbol)

std::string load_symbols(void *library, OpenSsl *api_out) {
  OpenSsl &api = *api_out;
  std::string missing_symbol;
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
  return missing_symbol;
}

Library *openssl = nullptr;  // never freed, because threads may outlive static objects
std::mutex &tls_mutex() {
  static auto *const mutex = new std::mutex;
  return *mutex;
}
bool tls_closed = false;

}  // namespace

// Functions that the library calls. OpenSSL's own socket functions would raise SIGPIPE.
struct TlsChannel::Callbacks {
  static TlsChannel &of(void *bio) { return *static_cast<TlsChannel *>(openssl->api.BIO_get_data(bio)); }

  static int transfer(void *bio, ssize_t n, int direction) {
    openssl->api.BIO_clear_flags(bio, kBioRetryMask);
    if (n >= 0) return static_cast<int>(n);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
      openssl->api.BIO_set_flags(bio, direction | kBioRetry);
    else
      of(bio).socket_error_ = errno;
    return -1;
  }
  static int read(void *bio, char *data, int size) {
    TlsChannel &channel = of(bio);
    const ssize_t n = recv(channel.fd_, data, static_cast<size_t>(size), MSG_DONTWAIT);
    channel.has_peer_ended_ |= n == 0 && size > 0;
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
    return copy_key(ssl, key, most_key);
  }
  static unsigned server_key(void *ssl, const char *identity, unsigned char *key, unsigned most_key) {
    return std::strcmp(identity, kIdentity) == 0 ? copy_key(ssl, key, most_key) : 0;
  }
  static unsigned copy_key(void *ssl, unsigned char *key, unsigned most_key) {
    const auto *const channel = static_cast<const TlsChannel *>(openssl->api.SSL_get_ex_data(ssl, 0));
    if (most_key < channel->key_.size()) return 0;
    std::memcpy(key, channel->key_.data(), channel->key_.size());
    return static_cast<unsigned>(channel->key_.size());
  }

  static std::string prepare(Library *library) {
    const OpenSsl &api = library->api;
    // Connections may live longer than the library's cleanup at exit would allow.
    if (api.OPENSSL_init_crypto(kInitNoAtexit, nullptr) != 1) return "it does not start";
    library->method = api.BIO_meth_new(kBioSourceSink, "collc");
    library->context = api.SSL_CTX_new(api.TLS_method());
    if (library->method == nullptr || library->context == nullptr) return "it cannot create a context";
    api.BIO_meth_set_read(library->method, read);
    api.BIO_meth_set_write(library->method, write);
    api.BIO_meth_set_ctrl(library->method, control);
    if (api.SSL_CTX_ctrl(library->context, kCtrlMinVersion, kTls13, nullptr) != 1 ||
        api.SSL_CTX_ctrl(library->context, kCtrlMaxVersion, kTls13, nullptr) != 1 ||
        api.SSL_CTX_set_ciphersuites(library->context, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") != 1)
      return "it has no TLS 1.3";
    api.SSL_CTX_set_num_tickets(library->context, 0);
    api.SSL_CTX_set_psk_client_callback(library->context, client_key);
    api.SSL_CTX_set_psk_server_callback(library->context, server_key);
    return "";
  }
};

Status TlsChannel::load() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (openssl == nullptr) {
    openssl = new Library;
    void *const library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    const char *const reason = library == nullptr ? dlerror() : nullptr;
    if (library == nullptr) {
      openssl->problem = printable(reason != nullptr ? reason : "libssl.so.3");
    } else {
      const std::string missing_symbol = load_symbols(library, &openssl->api);
      openssl->problem = missing_symbol.empty() ? Callbacks::prepare(openssl) : "it has no " + missing_symbol;
    }
    if (openssl->problem.empty()) log(LogLevel::kInfo, "tcp: TLS 1.3 by %s", openssl->api.OpenSSL_version(0));
  }
  if (openssl->problem.empty()) return {};
  return fail(ncclSystemError, "COLLC_NET_TLS needs OpenSSL 3, libssl.so.3 (Debian: libssl3): %s", openssl->problem.c_str());
}

void TlsChannel::end() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  tls_closed = true;
}

TlsChannel::TlsChannel(int fd, bool accepts, const Proof &key) : fd_(fd), key_(key), record_(kRecord) {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (tls_closed || openssl == nullptr || !openssl->problem.empty()) return;
  const OpenSsl &api = openssl->api;
  void *const bio = api.BIO_new(openssl->method);
  ssl_ = bio != nullptr ? api.SSL_new(openssl->context) : nullptr;
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
  if (ssl_ != nullptr && !tls_closed) openssl->api.SSL_free(ssl_);
}

void TlsChannel::set_errno(int result) {
  const int error = openssl->api.SSL_get_error(ssl_, result);
  if (error == kWantRead || error == kWantWrite) {
    errno = EAGAIN;
    return;
  }
  if (socket_error_ != 0) {
    errno = socket_error_;
    return;
  }
  const char *const reason = openssl->api.ERR_reason_error_string(openssl->api.ERR_get_error());
  if (why_.empty()) why_ = std::string("TLS: ") + (reason != nullptr ? reason : "the connection is in no order");
  errno = EPROTO;
}

ssize_t TlsChannel::receive(char *data, size_t size) {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  if (ssl_ == nullptr || tls_closed) {
    why_ = "TLS: no memory, or the process is ending";
    errno = tls_closed ? EAGAIN : EPROTO;
    return -1;
  }
  openssl->api.ERR_clear_error();
  const int n = openssl->api.SSL_read(ssl_, data, static_cast<int>(std::min<size_t>(size, INT32_MAX)));
  if (n > 0) return n;
  if (has_peer_ended_) return 0;
  set_errno(n);
  return -1;
}

bool TlsChannel::has_more() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  return ssl_ != nullptr && !tls_closed && openssl->api.SSL_pending(ssl_) > 0;
}

// Writes the waiting record, or sets errno.
void TlsChannel::write_record() {
  openssl->api.ERR_clear_error();
  const int n = openssl->api.SSL_write(ssl_, record_.data(), static_cast<int>(record_size_));
  if (n <= 0) return set_errno(n);
  bytes_since_rekey_ += record_size_;
  record_size_ = 0;
  if (bytes_since_rekey_ < kRekeyBytes) return;
  bytes_since_rekey_ = 0;
  openssl->api.SSL_key_update(ssl_, 0);
}

bool TlsChannel::flush() {
  const std::lock_guard<std::mutex> lock(tls_mutex());
  errno = EAGAIN;
  if (ssl_ != nullptr && !tls_closed && record_size_ > 0) write_record();
  return record_size_ == 0;
}

ssize_t TlsChannel::send(const iovec *pieces, size_t count) {
  if (!flush()) return -1;
  size_t size = 0;
  for (size_t i = 0; i < count && size < kRecord; ++i) {
    const size_t bytes = std::min(pieces[i].iov_len, kRecord - size);
    std::memcpy(record_.data() + size, pieces[i].iov_base, bytes);
    size += bytes;
  }
  record_size_ = size;
  flush();  // the next call reports an error
  return static_cast<ssize_t>(size);
}

}  // namespace collc
