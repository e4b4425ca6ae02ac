#include "penstock/testing/raw_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "testing/frame_reader.h"
#include "testing/listener.h"

namespace penstock::inline v0::testing {

namespace {

using Deadline = std::chrono::steady_clock::time_point;

Deadline After(Duration limit) { return SaturatingAdd(std::chrono::steady_clock::now(), limit); }

int MillisecondsLeft(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

}  // namespace

class RawClient::Impl {
 public:
  explicit Impl(RawClientSettings settings) : settings_(std::move(settings)) {}
  ~Impl() { Close(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The reason when it fails.
  std::string Connect(std::uint16_t port, Duration limit);

  bool Send(std::string_view bytes) {
    if (ssl_ == nullptr) return SendRaw(bytes);
    if (!bytes.empty() && SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0) return false;
    return FlushTls();
  }
  std::optional<RawFrame> Read(Deadline deadline);
  bool closed() const noexcept { return closed_; }
  void Started() { acknowledges_ = settings_.acknowledge; }
  void EndWriting() { shutdown(socket_, SHUT_WR); }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  void Reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    Close();
  }

 private:
  bool SendRaw(std::string_view bytes);
  bool Wait(short events, Deadline deadline) const;
  bool StartTls(Deadline deadline);
  bool FlushTls();
  // Feeds what has come and can be decrypted.
  void Decrypt();
  // Reads from the socket once and feeds what came; false at the end of time or of the connection.
  bool Receive(Deadline deadline);

  RawClientSettings settings_;
  int socket_ = -1;
  Duration limit_{};
  bool acknowledges_ = false;
  bool closed_ = false;
  detail::FrameReader reader_{false};
  std::unique_ptr<SSL_CTX, FreeSsl> context_;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // over memory buffers, so that no signal comes of a closed socket
};

std::string RawClient::Impl::Connect(std::uint16_t port, Duration limit) {
  limit_ = limit;
  const std::string where = settings_.host + ":" + std::to_string(port);
  in_addr parsed{};
  if (inet_pton(AF_INET, settings_.host.c_str(), &parsed) != 1) {
    return "raw client: host \"" + settings_.host + "\" is not an IPv4 address";
  }
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (settings_.receive_buffer > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &settings_.receive_buffer, sizeof settings_.receive_buffer);
  }
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const sockaddr_in address = detail::Ipv4(settings_.host, port);
  int failure = connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    if (!Wait(POLLOUT, After(limit))) return "raw client: " + where + " does not answer";
    socklen_t length = sizeof failure;
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &failure, &length);
  }
  if (failure != 0) return "raw client: cannot connect to " + where + ": " + std::strerror(failure);
  if (settings_.tls && !StartTls(After(limit))) return "raw client: the TLS handshake with " + where + " failed";
  return {};
}

bool RawClient::Impl::Wait(short events, Deadline deadline) const {
  pollfd what{.fd = socket_, .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&what, 1, MillisecondsLeft(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

bool RawClient::Impl::SendRaw(std::string_view bytes) {
  const Deadline deadline = After(limit_);
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR && (errno != EAGAIN || !Wait(POLLOUT, deadline))) {
      return false;
    }
  }
  return true;
}

bool RawClient::Impl::StartTls(Deadline deadline) {
  context_.reset(SSL_CTX_new(TLS_client_method()));
  ssl_.reset(SSL_new(context_.get()));
  SSL_set_verify(ssl_.get(), SSL_VERIFY_NONE, nullptr);
  const unsigned char protocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl_.get(), protocols, sizeof protocols);
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  for (;;) {
    const int done = SSL_connect(ssl_.get());
    if (!FlushTls()) return false;
    if (done == 1) {
      Decrypt();  // what came together with the handshake's end
      return true;
    }
    if (SSL_get_error(ssl_.get(), done) != SSL_ERROR_WANT_READ || !Receive(deadline)) return false;
  }
}

bool RawClient::Impl::FlushTls() {
  char* bytes = nullptr;
  BIO* out = SSL_get_wbio(ssl_.get());
  const long length = BIO_get_mem_data(out, &bytes);
  const bool sent = length == 0 || SendRaw({bytes, static_cast<std::size_t>(length)});
  BIO_reset(out);
  return sent;
}

bool RawClient::Impl::Receive(Deadline deadline) {
  if (closed_ || socket_ < 0 || !Wait(POLLIN, deadline)) return false;
  char bytes[16 * 1024];
  const ssize_t count = recv(socket_, bytes, sizeof bytes, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) {
    closed_ = true;
    return false;
  }
  if (ssl_ == nullptr) {
    reader_.Feed({bytes, static_cast<std::size_t>(count)});
    return true;
  }
  BIO_write(SSL_get_rbio(ssl_.get()), bytes, static_cast<int>(count));
  if (SSL_is_init_finished(ssl_.get()) != 0) Decrypt();
  return true;
}

void RawClient::Impl::Decrypt() {
  char bytes[16 * 1024];
  int count = 0;
  while ((count = SSL_read(ssl_.get(), bytes, sizeof bytes)) > 0) reader_.Feed({bytes, static_cast<std::size_t>(count)});
}

std::optional<RawFrame> RawClient::Impl::Read(Deadline deadline) {
  detail::ReadFrame read;
  for (;;) {
    switch (reader_.Next(read)) {
      case detail::FrameReader::Got::kFrame: {
        RawFrame frame{.type = read.type,
                       .flags = read.flags,
                       .stream = read.stream,
                       .payload = std::string(read.payload),
                       .headers = std::move(read.headers)};
        if (!acknowledges_ || frame.has(kAckFlag)) return frame;
        if (frame.type == FrameType::kSettings) Send(Encode(SettingsAckFrame()));
        if (frame.type == FrameType::kPing) Send(Encode(PingFrame(frame.payload, true)));
        return frame;
      }
      case detail::FrameReader::Got::kBroken:
        closed_ = true;
        return std::nullopt;
      case detail::FrameReader::Got::kNothing:
        if (!Receive(deadline)) return std::nullopt;
        break;
    }
  }
}

Result<std::unique_ptr<RawClient>> RawClient::Connect(std::uint16_t port, RawClientSettings settings, Duration limit) {
  auto impl = std::make_unique<Impl>(std::move(settings));
  std::string problem = impl->Connect(port, limit);
  if (!problem.empty()) return Error(std::move(problem));
  return std::unique_ptr<RawClient>(new RawClient(std::move(impl)));
}

RawClient::RawClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RawClient::~RawClient() = default;

bool RawClient::Send(std::string_view bytes) { return impl_->Send(bytes); }

bool RawClient::StartHttp2() {
  impl_->Started();
  return Send(std::string(kHttp2Preface) + Encode(SettingsFrame()));
}

bool RawClient::Request(std::uint32_t stream, std::string_view path, const RawHeaders& more, std::string_view message,
                        bool end_stream) {
  RawHeaders headers{{":method", "POST"},      {":scheme", "http"}, {":path", std::string(path)},
                     {":authority", "raw"},    {"te", "trailers"},  {"content-type", "application/grpc"},
                     {"user-agent", "raw/1.0"}};
  headers.insert(headers.end(), more.begin(), more.end());
  return Send(Encode(HeadersFrame(stream, headers)) + Encode(DataFrame(stream, GrpcMessage(message), end_stream)));
}

std::optional<RawFrame> RawClient::Read(Duration limit) { return impl_->Read(After(limit)); }

std::optional<RawFrame> RawClient::ReadUntil(FrameType type, Duration limit) {
  const Deadline deadline = After(limit);
  for (;;) {
    std::optional<RawFrame> frame = impl_->Read(deadline);
    if (!frame.has_value() || frame->type == type) return frame;
  }
}

std::optional<RawFrame> RawClient::ReadEnd(std::uint32_t stream, Duration limit) {
  const Deadline deadline = After(limit);
  for (;;) {
    std::optional<RawFrame> frame = impl_->Read(deadline);
    if (!frame.has_value()) return frame;
    if (frame->stream != stream) continue;
    if (frame->type == FrameType::kRstStream) return frame;
    if ((frame->type == FrameType::kHeaders || frame->type == FrameType::kData) && frame->has(kEndStreamFlag)) return frame;
  }
}

bool RawClient::WaitUntilClosed(Duration limit) {
  const Deadline deadline = After(limit);
  while (impl_->Read(deadline).has_value()) {
  }
  return closed();
}

bool RawClient::closed() const noexcept { return impl_->closed(); }

void RawClient::EndWriting() { impl_->EndWriting(); }

void RawClient::Close() { impl_->Close(); }

void RawClient::Reset() { impl_->Reset(); }

}  // namespace penstock::inline v0::testing
