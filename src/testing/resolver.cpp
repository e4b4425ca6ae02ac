#include "penstock/testing/resolver.h"

#include <arpa/inet.h>
#include <uv.h>

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "testing/listener.h"
#include "testing/loop.h"

namespace penstock::inline v0::testing {

namespace {

constexpr std::string_view kHost = "127.0.0.1";
constexpr std::size_t kHeader = 12;
constexpr std::size_t kMostMessage = 65'535;
constexpr int kPortAttempts = 20;

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

struct Question {
  std::string name;
  std::size_t end = 0;  // of the question in the message
  bool for_address = false;
};

// The first question of a query (RFC 1035, 4.1); none where it is malformed.
std::optional<Question> Parse(std::string_view query) {
  if (query.size() < kHeader) return std::nullopt;
  Question question;
  std::size_t at = kHeader;
  for (;;) {
    if (at >= query.size()) return std::nullopt;
    const auto length = static_cast<unsigned char>(query[at++]);
    if (length == 0) break;
    // A pointer has no place in a question.
    if (length > 63 || at + length > query.size()) return std::nullopt;
    if (!question.name.empty()) question.name += '.';
    question.name += query.substr(at, length);
    at += length;
  }
  if (at + 4 > query.size()) return std::nullopt;
  question.for_address = query.substr(at, 4) == std::string_view("\0\x01\0\x01", 4);
  question.end = at + 4;
  question.name = Lower(std::move(question.name));
  return question;
}

}  // namespace

// Everything runs on the loop's thread, unless it says otherwise.
class Resolver::Impl {
 public:
  Impl() : loop_(detail::Loop::Shared()), listener_(*loop_) {}

  // On the creator's thread: TCP takes a free port, and UDP has to get the same.
  std::string Listen() {
    std::string problem = listener_.Listen("resolver", std::string(kHost), 0,
                                           [this](uv_stream_t* listener) { OnConnection(listener); });
    if (!problem.empty()) return problem;
    int failure = 0;
    loop_->Run([&] {
      datagrams_.data = this;
      failure = uv_udp_init(loop_->uv(), &datagrams_);
      if (failure != 0) return;
      datagrams_open_ = true;
      const sockaddr_in address = detail::Ipv4(std::string(kHost), listener_.port());
      failure = uv_udp_bind(&datagrams_, reinterpret_cast<const sockaddr*>(&address), 0);
      if (failure != 0) return;
      failure = uv_udp_recv_start(
          &datagrams_,
          [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
            Impl& resolver = *static_cast<Impl*>(handle->data);
            *buffer = uv_buf_init(resolver.read_buffer_, sizeof resolver.read_buffer_);
          },
          [](uv_udp_t* socket, ssize_t count, const uv_buf_t* buffer, const sockaddr* from, unsigned) {
            if (count <= 0 || from == nullptr) return;
            Impl& resolver = *static_cast<Impl*>(socket->data);
            std::string answer = resolver.Answer({buffer->base, static_cast<std::size_t>(count)});
            uv_buf_t out = uv_buf_init(answer.data(), static_cast<unsigned>(answer.size()));
            // What does not go out at once is lost, as datagrams may be; clients ask again.
            if (!answer.empty()) uv_udp_try_send(socket, &out, 1, from);
          });
    });
    if (failure == 0) return {};
    return "resolver: no UDP port " + std::to_string(listener_.port()) + ": " + uv_strerror(failure);
  }

  // On the destroyer's thread: returns when every handle is closed.
  void Close() {
    loop_->Run([this] {
      closing_ = true;
      for (Connection* connection : connections_) CloseConnection(*connection);
      if (datagrams_open_) {
        uv_close(reinterpret_cast<uv_handle_t*>(&datagrams_), [](uv_handle_t* handle) {
          auto& resolver = *static_cast<Impl*>(handle->data);
          resolver.datagrams_open_ = false;
          resolver.OnClosedSomething();
        });
      }
      listener_.Close([this] { OnClosedSomething(); });
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_; });
  }

  std::string address() const { return std::string(kHost) + ":" + std::to_string(listener_.port()); }

  // On any thread.
  void Set(const std::string& name, std::vector<std::string> addresses) {
    std::lock_guard lock(mutex_);
    names_[Lower(name)] = std::move(addresses);
  }
  std::uint64_t questions() const {
    std::lock_guard lock(mutex_);
    return questions_;
  }

 private:
  struct Connection {
    Impl* resolver = nullptr;
    uv_tcp_t socket{};
    std::string bytes;
    bool closed = false;
  };

  // Empty where there is nothing to answer.
  std::string Answer(std::string_view query) {
    const std::optional<Question> question = Parse(query);
    if (!question.has_value()) return {};
    bool known = false;
    std::vector<std::string> addresses;
    {
      std::lock_guard lock(mutex_);
      const auto found = names_.find(question->name);
      known = found != names_.end();
      if (question->for_address) {
        ++questions_;
        if (known) addresses = found->second;
      }
    }
    std::string answer(query.substr(0, question->end));
    answer[2] = static_cast<char>(0x84 | (query[2] & 0x01));  // an answer, authoritative; recursion desired as it was
    answer[3] = known ? '\x00' : '\x03';                       // NXDOMAIN
    answer.replace(4, 8, std::string_view("\0\x01\0\0\0\0\0\0", 8));
    answer[7] = static_cast<char>(addresses.size());
    for (const std::string& address : addresses) {
      in_addr parsed{};
      inet_pton(AF_INET, address.c_str(), &parsed);
      // The name by a pointer to the question, A, IN, for 0 s, 4 bytes.
      answer.append("\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04", 12);
      answer.append(reinterpret_cast<const char*>(&parsed), sizeof parsed);
    }
    return answer;
  }

  void OnConnection(uv_stream_t* listener) {
    auto* connection = new Connection;
    connection->resolver = this;
    connection->socket.data = connection;
    connections_.insert(connection);
    uv_tcp_init(loop_->uv(), &connection->socket);
    auto* stream = reinterpret_cast<uv_stream_t*>(&connection->socket);
    if (uv_accept(listener, stream) != 0 || closing_) return CloseConnection(*connection);
    uv_read_start(
        stream,
        [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
          Impl& resolver = *static_cast<Connection*>(handle->data)->resolver;
          *buffer = uv_buf_init(resolver.read_buffer_, sizeof resolver.read_buffer_);
        },
        [](uv_stream_t* from, ssize_t count, const uv_buf_t* buffer) {
          auto& asking = *static_cast<Connection*>(from->data);
          if (count < 0) return asking.resolver->CloseConnection(asking);
          asking.bytes.append(buffer->base, static_cast<std::size_t>(count));
          asking.resolver->AnswerAll(asking);
        });
  }

  // RFC 1035, 4.2.2: over TCP two bytes of length go before each message.
  void AnswerAll(Connection& connection) {
    while (connection.bytes.size() >= 2 && !connection.closed) {
      const std::size_t length = static_cast<std::size_t>(static_cast<unsigned char>(connection.bytes[0])) << 8 |
                                 static_cast<unsigned char>(connection.bytes[1]);
      if (connection.bytes.size() < 2 + length) return;
      const std::string answer = Answer(std::string_view(connection.bytes).substr(2, length));
      connection.bytes.erase(0, 2 + length);
      if (answer.empty()) return CloseConnection(connection);
      std::string framed{static_cast<char>(answer.size() >> 8), static_cast<char>(answer.size() & 0xff)};
      framed += answer;
      uv_buf_t out = uv_buf_init(framed.data(), static_cast<unsigned>(framed.size()));
      const int sent = uv_try_write(reinterpret_cast<uv_stream_t*>(&connection.socket), &out, 1);
      if (sent != static_cast<int>(framed.size())) return CloseConnection(connection);
    }
  }

  void CloseConnection(Connection& connection) {
    if (connection.closed) return;
    connection.closed = true;
    uv_close(reinterpret_cast<uv_handle_t*>(&connection.socket), [](uv_handle_t* handle) {
      auto* closed = static_cast<Connection*>(handle->data);
      Impl& resolver = *closed->resolver;
      resolver.connections_.erase(closed);
      delete closed;
      resolver.OnClosedSomething();
    });
  }

  void OnClosedSomething() {
    std::lock_guard lock(mutex_);
    if (!closing_ || listener_.open() || datagrams_open_ || !connections_.empty()) return;
    closed_ = true;
    // Under the lock: Close() destroys all this as soon as it is let go.
    changed_.notify_all();
  }

  std::shared_ptr<detail::Loop> loop_;
  detail::Listener listener_;
  uv_udp_t datagrams_{};
  bool datagrams_open_ = false;
  bool closing_ = false;
  std::set<Connection*> connections_;
  char read_buffer_[kMostMessage];

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  std::map<std::string, std::vector<std::string>> names_;
  std::uint64_t questions_ = 0;
  bool closed_ = false;
};

Result<std::unique_ptr<Resolver>> Resolver::Create() {
  std::string problem;
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    auto impl = std::make_unique<Impl>();
    problem = impl->Listen();
    std::unique_ptr<Resolver> resolver(new Resolver(std::move(impl)));
    if (problem.empty()) return resolver;
  }
  return Error(std::move(problem));
}

Resolver::Resolver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Resolver::~Resolver() { impl_->Close(); }

std::string Resolver::address() const { return impl_->address(); }

void Resolver::Set(const std::string& name, std::vector<std::string> addresses) {
  impl_->Set(name, std::move(addresses));
}

std::uint64_t Resolver::questions() const { return impl_->questions(); }

}  // namespace penstock::inline v0::testing
