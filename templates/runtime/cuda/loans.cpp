#include "cuda/loans.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "bootstrap/sockets.h"
#include "collc/cuda/layout.h"

namespace collc::cuda {
namespace {

// Whole or not at all. `file`: -1 for none.
bool send_message(int socket, const void *words, size_t size, int file) {
  iovec part{const_cast<void *>(words), size};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr *const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(header), &file, sizeof file);
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0 && static_cast<size_t>(sent) != size) errno = EPROTO;
  return sent >= 0 && static_cast<size_t>(sent) == size;
}

enum class Heard { kNothing, kMessage, kEnd };

Heard receive_message(int socket, void *words, size_t size, Descriptor *file) {
  iovec part{words, size};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  ssize_t received = 0;
  *file = Descriptor::open([&] {
    int fd = -1;
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const cmsghdr *const header = received <= 0 ? nullptr : CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
  });
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::kNothing;
  return received >= 0 && static_cast<size_t>(received) == size ? Heard::kMessage : Heard::kEnd;
}

}  // namespace

Loans::Loans(const RankContext &context, const Device *device)
    : device_(device), rank_(context.rank), secret_(context.secret), nranks_(context.nranks), segment_(context.segment) {}

Status Loans::listen(const RankContext &context, const Device *device, SocketName *name, std::shared_ptr<Loans> *made) {
  auto loans = std::make_shared<Loans>(context, device);
  COLLC_RETURN_IF_FAILED(name_socket(name));
  Descriptor listening;
  COLLC_RETURN_IF_FAILED(listen_at(local_address(name->text), &listening));
  loans->acceptor_ = std::make_unique<Acceptor>(std::move(listening), sizeof(RankHello), true);
  *made = std::move(loans);
  return {};
}

void Loans::begin(std::vector<Reader> readers, const volatile uint32_t *gives_up, void (*ring)()) {
  links_.resize(readers.size());
  for (size_t r = 0; r < readers.size(); ++r) links_[r].reader = std::move(readers[r]);
  gives_up_ = gives_up;
  ring_ = ring;
}

// With the mutex held: whether a reader may still answer an offer of before, as it would a new one.
bool Loans::awaits_return(uint64_t number) const {
  return std::any_of(unreturned_.begin(), unreturned_.end(), [number](const auto &one) { return one.second == number; });
}

void Loans::find(const LentBuffer &buffer, uint64_t *words) {
  bool is_new = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t r = 0; r < links_.size(); ++r) words[2 * r] = kNotThere;
    if (awaits_return(buffer.number)) return;
    const auto [found, made] = offers_.try_emplace(buffer.number);
    Offer &offer = found->second;
    is_new = made;
    if (made) {
      offer.buffer = buffer;
      offer.words.assign(links_.size(), kNotThere);
      for (size_t r = 0; r < links_.size(); ++r) {
        if (links_[r].lost) continue;
        offer.asked.insert(r);
        links_[r].unsent.push_back({Kind::kOffer, 0, buffer.number, buffer.bytes, 0, {}});
      }
    }
    for (size_t r = 0; r < links_.size(); ++r) words[2 * r] = offer.words[r];
  }
  if (is_new) ring_();
}

bool Loans::is_answered(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || segment_->aborted()) return true;
  const auto found = offers_.find(number);
  return found == offers_.end() ? !awaits_return(number) : found->second.asked.empty();
}

void Loans::forget(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = offers_.find(number);
  if (found == offers_.end()) return;
  offers_.erase(found);
  // A kernel that gives up sets the flag before it ends.
  if (closed_ || *gives_up_ != 0 || segment_->aborted()) return;
  for (size_t r = 0; r < links_.size(); ++r) {
    if (links_[r].lost) continue;
    unreturned_.emplace(r, number);
    links_[r].unsent.push_back({Kind::kFreed, 0, number, 0, 0, {}});
  }
}

bool Loans::awaits_returns() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !closed_ && !unreturned_.empty();
}

void Loans::close(DeferredFrees *frees) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    gives_up_ = nullptr;
    segment_ = nullptr;
    offers_.clear();
    for (const auto &[of, one] : borrowed_) {
      if (one.by_handle)
        frees->close_handle(device_, one.memory.at);
      else
        frees->unmap(device_, one.memory);
    }
    borrowed_.clear();
  }
  if (ring_ != nullptr) ring_();
}

bool Loans::is_closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

// Connects without waiting; false if the reader cannot take it now. `lost` if it never will.
bool Loans::connect(Link &link) {
  if (link.socket.intact()) return link.greeting == nullptr || greet(link, link.greeting->advance(link.socket.get()));
  if (link.socket) {  // a program has closed it
    lose(static_cast<size_t>(&link - links_.data()));
    return false;
  }
  const collc::Address address = local_address(link.reader.socket);
  Descriptor made = make_socket(AF_UNIX);
  if (!made) return false;
  if (::connect(made.get(), address.get(), address.size) != 0) {
    const bool later = errno == EAGAIN || errno == EINTR;
    if (!later) lose(static_cast<size_t>(&link - links_.data()));
    return false;
  }
  uid_t user = 0;
  if (!peer_user(made.get(), &user) || user != geteuid()) {
    lose(static_cast<size_t>(&link - links_.data()));
    return false;
  }
  link.socket = std::move(made);
  link.greeting = std::make_unique<Greeting>();
  return greet(link, link.greeting->start(link.socket.get(), secret_, RankHello{rank_}));
}

// Both ends prove that they know the secret; true when they have.
bool Loans::greet(Link &link, Greeting::Step step) {
  if (step == Greeting::Step::kProved) link.greeting.reset();
  if (step != Greeting::Step::kProved && step != Greeting::Step::kWaits) lose(static_cast<size_t>(&link - links_.data()));
  return step == Greeting::Step::kProved;
}

// False if it has to go on later.
bool Loans::send_to(size_t reader) {
  Link &link = links_[reader];
  for (;;) {
    Message message = {};
    std::shared_ptr<const ShareableMemory> memory;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (link.lost || link.unsent.empty() || closed_) return true;
      message = link.unsent.front();
      const auto found = offers_.find(message.number);
      if (found != offers_.end()) memory = found->second.buffer.memory;
      if (found != offers_.end() && memory == nullptr && message.kind == Kind::kOffer) {
        message.kind = Kind::kHandle;
        message.handle = found->second.buffer.handle;
      }
    }
    if (!connect(link)) return link.lost;
    Descriptor file;
    if (message.kind == Kind::kOffer && memory != nullptr) file = memory->describe();
    // Without a descriptor nothing can be mapped; one that was freed meanwhile is not offered, and its end says nothing new.
    if (message.kind != Kind::kOffer || file) {
      if (!send_message(link.socket.get(), &message, sizeof message, file.get())) {
        if (errno == EAGAIN || errno == EINTR) return false;
        lose(reader);
        return true;
      }
    } else {
      take_answer(reader, {Kind::kRefused, 0, message.number, 0, 0, {}});
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!link.unsent.empty()) link.unsent.pop_front();
  }
}

bool Loans::send() {
  bool all = true;
  for (size_t r = 0; r < links_.size(); ++r) all &= send_to(r);
  return all;
}

// It reads nothing where it stands from now on. Its process has ended, or its communicator, or it is out of reach.
void Loans::lose(size_t reader) {
  Link &link = links_[reader];
  link.socket.reset();
  link.greeting.reset();
  const std::lock_guard<std::mutex> lock(mutex_);
  link.lost = true;
  link.unsent.clear();
  for (auto &[number, offer] : offers_) {
    offer.words[reader] = kNotThere;
    offer.asked.erase(reader);
  }
  for (auto one = unreturned_.begin(); one != unreturned_.end();) one = one->first == reader ? unreturned_.erase(one) : ++one;
}

void Loans::take_answer(size_t reader, const Message &answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (answer.kind == Kind::kReturned) unreturned_.erase({reader, answer.number});
  const auto found = offers_.find(answer.number);
  if (found == offers_.end() || found->second.asked.erase(reader) == 0) return;
  Offer &offer = found->second;
  if (answer.kind == Kind::kMapped) offer.words[reader] = answer.at - offer.buffer.begin;
  if (answer.kind == Kind::kRefused)
    log(LogLevel::kInfo, "rank %u: rank %u cannot map its buffer of %zu bytes at %#llx, which passes through slots", rank_,
        links_[reader].reader.rank, offer.buffer.bytes, static_cast<unsigned long long>(offer.buffer.begin));
}

bool Loans::receive_answers(size_t reader) {
  for (;;) {
    Message answer = {};
    Descriptor none;
    const Heard heard = receive_message(links_[reader].socket.get(), &answer, sizeof answer, &none);
    if (heard != Heard::kMessage) return heard == Heard::kNothing;
    take_answer(reader, answer);
  }
}

bool Loans::map(const Message &offer, const Descriptor &file, Borrowed *made) const {
  if (offer.kind != Kind::kHandle) return file && map_virtual(*device_, file.get(), offer.bytes, &made->memory);
  *made = {{0, offer.bytes}, true};
  return driver().ipc_open(&made->memory.at, offer.handle, kIpcLazyPeerAccess) == 0;
}

// Takes the address away from kernels that read there: there are none, or the writer would not have freed it. To close a handle
// waits for all others too, so where some run, that comes later.
void Loans::unmap(const Borrowed &borrowed) const {
  if (!borrowed.by_handle) {
    collc::cuda::unmap(borrowed.memory);
    return;
  }
  auto frees = std::make_unique<DeferredFrees>();
  frees->close_handle(device_, borrowed.memory.at);
  dispose(std::move(frees));
}

void Loans::take_back(const Borrowing &from, uint64_t number) {
  Borrowed borrowed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = borrowed_.find({from.rank, number});
    if (closed_ || found == borrowed_.end()) return;
    borrowed = found->second;
    borrowed_.erase(found);
  }
  unmap(borrowed);
}

// False if the answer cannot be sent, as where the writer takes none in: it then passes everything through slots.
bool Loans::take_offer(const Borrowing &from, const Message &offer, Descriptor file) {
  const Current current(device_->context);
  Message answer = {Kind::kRefused, 0, offer.number, offer.bytes, 0, {}};
  if (offer.kind == Kind::kFreed) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (closed_ || segment_->aborted()) return true;
    }
    take_back(from, offer.number);
    answer.kind = Kind::kReturned;
  } else if (Borrowed mapped; map(offer, file, &mapped)) {
    bool is_new = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_new = !closed_ && borrowed_.emplace(std::make_pair(from.rank, offer.number), mapped).second;
    }
    if (!is_new) {
      unmap(mapped);
      return false;
    }
    answer = {Kind::kMapped, 0, offer.number, offer.bytes, mapped.memory.at, {}};
  }
  return send_message(from.socket.get(), &answer, sizeof answer, -1);
}

bool Loans::receive_offers(Borrowing &from) {
  for (;;) {
    Message offer = {};
    Descriptor file;
    const Heard heard = receive_message(from.socket.get(), &offer, sizeof offer, &file);
    if (heard != Heard::kMessage) return heard == Heard::kNothing;
    if (!take_offer(from, offer, std::move(file))) return false;
  }
}

void Loans::add_to(std::vector<pollfd> *polled) const {
  acceptor_->add_to(polled);
  for (const Borrowing &from : borrowings_) polled->push_back({from.socket.get(), POLLIN, 0});
  for (const Link &link : links_) polled->push_back({link.socket.get(), POLLIN, 0});  // without one: passed over
}

void Loans::handle_events(const pollfd **at) {
  std::vector<Borrowing> accepted;
  acceptor_->handle_events(at, {[this](const unsigned char *) { return secret_; },
                                [&](Descriptor client, const unsigned char *words) {
                                  RankHello hello;
                                  std::memcpy(&hello, words, sizeof hello);
                                  if (hello.rank < nranks_) accepted.push_back({std::move(client), hello.rank});
                                }});
  for (Borrowing &from : borrowings_)
    if ((*at)++->revents != 0 && !(from.socket.intact() && receive_offers(from))) from.socket.reset();
  for (size_t r = 0; r < links_.size(); ++r)
    if ((*at)++->revents != 0 && links_[r].socket && links_[r].greeting == nullptr &&
        !(links_[r].socket.intact() && receive_answers(r)))
      lose(r);
  borrowings_.erase(std::remove_if(borrowings_.begin(), borrowings_.end(), [](const Borrowing &one) { return !one.socket; }),
                    borrowings_.end());
  // Offers may have come with the answer.
  for (Borrowing &from : accepted)
    if (receive_offers(from)) borrowings_.push_back(std::move(from));
}

}  // namespace collc::cuda
