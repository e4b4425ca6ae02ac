#include "testing/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "testing/loop.h"

namespace penstock::inline v0::testing::detail {

namespace {
constexpr int kBacklog = 1024;
}  // namespace

std::string Listener::Listen(const std::string& what, const std::string& host, std::uint16_t port,
                             std::function<void(uv_stream_t*)> on_connection) {
  in_addr parsed{};
  if (inet_pton(AF_INET, host.c_str(), &parsed) != 1) return what + ": host \"" + host + "\" is not an IPv4 address";
  on_connection_ = std::move(on_connection);
  int failure = 0;
  loop_.Run([&] {
    socket_.data = this;
    failure = uv_tcp_init(loop_.uv(), &socket_);
    if (failure != 0) return;
    open_ = true;
    const sockaddr_in address = Ipv4(host, port);
    failure = uv_tcp_bind(&socket_, reinterpret_cast<const sockaddr*>(&address), 0);
    if (failure == 0) {
      failure = uv_listen(reinterpret_cast<uv_stream_t*>(&socket_), kBacklog, [](uv_stream_t* listener, int status) {
        if (status == 0) static_cast<Listener*>(listener->data)->on_connection_(listener);
      });
    }
    if (failure != 0) return;
    sockaddr_in bound{};
    int length = sizeof bound;
    failure = uv_tcp_getsockname(&socket_, reinterpret_cast<sockaddr*>(&bound), &length);
    port_ = ntohs(bound.sin_port);
  });
  if (failure == 0) return {};
  return what + ": cannot listen on " + host + ":" + std::to_string(port) + ": " + uv_strerror(failure);
}

void Listener::Close(std::function<void()> closed) {
  if (!open_) return closed();
  closed_ = std::move(closed);
  uv_close(reinterpret_cast<uv_handle_t*>(&socket_), [](uv_handle_t* handle) {
    auto& listener = *static_cast<Listener*>(handle->data);
    listener.open_ = false;
    // Moved out: the owner may be destroyed by it.
    const std::function<void()> done = std::move(listener.closed_);
    done();
  });
}

void ResetOnClose(uv_tcp_t& socket) {
  uv_os_fd_t descriptor = -1;
  if (uv_fileno(reinterpret_cast<const uv_handle_t*>(&socket), &descriptor) != 0) return;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

sockaddr_in Ipv4(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

}  // namespace penstock::inline v0::testing::detail
