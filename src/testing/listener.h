#pragma once

// A listening TCP socket on the kit's loop, for the router, the raw peer and the resolver.
//
// Threads: Listen on the creator's thread; Close, open and the function on the loop's.
// Ownership: must be closed, and the closing be done, before it is destroyed.
// Errors: Listen returns the reason, which names the address; empty when it listens.

#include <uv.h>

#include <cstdint>
#include <functional>
#include <string>

namespace penstock::inline v0::testing::detail {

class Loop;

class Listener {
 public:
  explicit Listener(Loop& loop) : loop_(loop) {}

  [[nodiscard]] std::string Listen(const std::string& what, const std::string& host, std::uint16_t port,
                                   std::function<void(uv_stream_t*)> on_connection);
  void Close(std::function<void()> closed);

  std::uint16_t port() const noexcept { return port_; }
  bool open() const noexcept { return open_; }

 private:
  Loop& loop_;
  uv_tcp_t socket_{};
  std::function<void(uv_stream_t*)> on_connection_;
  std::function<void()> closed_;
  std::uint16_t port_ = 0;
  bool open_ = false;
};

// Makes the close of the socket a reset.
void ResetOnClose(uv_tcp_t& socket);

// The address is checked already.
sockaddr_in Ipv4(const std::string& host, std::uint16_t port);

}  // namespace penstock::inline v0::testing::detail
