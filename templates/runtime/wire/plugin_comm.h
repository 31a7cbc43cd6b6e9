// One comm of a network plugin: messages in one direction, in order.
#pragma once
#include <map>
#include <memory>

#include "wire/plugin_net.h"

namespace collc {

// Memory that a plugin may still read or write, with what it lies in: nothing frees that as long as the process lives.
void keep_for_ever(std::shared_ptr<const void> owner);

// Pages of their own for what is registered: plugins may keep those away from children of this process, with whatever else is in them.
class OwnPages {
 public:
  static Status make(size_t bytes, std::shared_ptr<OwnPages> *made);
  ~OwnPages();
  OwnPages(const OwnPages &) = delete;
  OwnPages &operator=(const OwnPages &) = delete;

  char *begin() const { return begin_; }
  size_t bytes() const { return bytes_; }  // whole pages

 private:
  OwnPages(char *begin, size_t bytes) : begin_(begin), bytes_(bytes) {}

  char *begin_;
  size_t bytes_;
};

// For whoever has the ForeignTurn. Requests end in the order in which they were posted.
class PluginComm {
 public:
  // `comm`: of connect() if it `sends`, else of accept().
  PluginComm(std::shared_ptr<PluginNet> net, void *comm, bool sends) : net_(std::move(net)), comm_(comm), sends_(sends) {}
  // Closes it, which waits for nobody. What has been posted and has not ended may go on in the plugin.
  ~PluginComm();
  PluginComm(const PluginComm &) = delete;
  PluginComm &operator=(const PluginComm &) = delete;

  // Has the plugin know memory that messages lie in; its owner is kept if the plugin may use the memory after the comm.
  Status enroll(char *memory, size_t bytes, std::shared_ptr<const void> owner, bool on_gpu = false);
  // The opposite, of memory that no message was in; nothing if it is not known.
  void forget(char *memory);
  bool is_on_gpu(const char *data) const;
  bool knows(const char *data, size_t bytes) const { return find(data, bytes) != nullptr; }
  // `request`: null if the plugin takes it later, when it is to be posted again.
  Status post(char *data, size_t bytes, void **request);
  // Of a message that has come into memory of a GPU: the GPU sees it when `request` has ended, at once if that is null.
  Status flush(char *data, size_t bytes, void **request);
  // `request`: null as soon as it has ended; `bytes`: that were sent or received.
  Status test(void **request, size_t *bytes);

 private:
  struct Memory {
    size_t bytes;
    void *known;
    std::shared_ptr<const void> owner;
    bool on_gpu;
  };
  // What contains these bytes; null: nothing.
  const Memory *find(const char *data, size_t bytes) const;

  std::shared_ptr<PluginNet> net_;
  void *comm_;
  bool sends_;
  std::map<char *, Memory> memory_;  // by its begin
  uint32_t outstanding_ = 0;  // posted ones that have not ended, as far as test() has told
};

}  // namespace collc
