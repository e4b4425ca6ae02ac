// Calls that are far apart (suite slow).

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "support/client_calls.h"
#include "support/echo_pod.h"

namespace penstock::test {

namespace {

// A byte to another thread over loopback and back: what waking two sleeping threads costs this machine, without gRPC.
class BareEcho {
 public:
  BareEcho() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(::connect(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    echo_ = std::jthread([peer = ::accept(listener, nullptr, nullptr)] {
      char byte = 0;
      while (::recv(peer, &byte, 1, 0) == 1 && ::send(peer, &byte, 1, MSG_NOSIGNAL) == 1) {
      }
      ::close(peer);
    });
    ::close(listener);
  }
  ~BareEcho() { ::shutdown(socket_, SHUT_RDWR), echo_.join(), ::close(socket_); }
  BareEcho(const BareEcho&) = delete;
  BareEcho& operator=(const BareEcho&) = delete;

  void RoundTrip() {
    char byte = 'x';
    REQUIRE(::send(socket_, &byte, 1, MSG_NOSIGNAL) == 1);
    REQUIRE(::recv(socket_, &byte, 1, 0) == 1);
  }

 private:
  int socket_ = -1;
  std::jthread echo_;
};

struct Waits {
  template <class Call>
  void Time(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::chrono::microseconds At(double part) {
    std::sort(took.begin(), took.end());
    return std::chrono::duration_cast<std::chrono::microseconds>(took[static_cast<std::size_t>(part * (took.size() - 1))]);
  }
  std::string Text() {
    return "p50 " + std::to_string(At(0.5).count()) + " us, p99 " + std::to_string(At(0.99).count()) + " us, worst " +
           std::to_string(At(1).count()) + " us";
  }
  std::vector<std::chrono::nanoseconds> took;
};

}  // namespace

TEST_CASE("L12: 400 calls 1.0 to 1.2 s apart to a penstock server in a process of its own are as fast as any") {
  auto pod = EchoPods({.own_process = true})(0);
  REQUIRE(pod.ok());
  Client client = MakeClient({.address = "127.0.0.1:" + std::to_string((*pod)->port())});
  BareEcho bare;
  Waits calls, round_trips;
  for (int call = 0; call < 400; ++call) {
    // Half of the pause before each of the two, so that a call is not woken by the round trip.
    std::this_thread::sleep_for(500ms + std::chrono::milliseconds(call / 4));
    round_trips.Time([&] { bare.RoundTrip(); });
    std::this_thread::sleep_for(500ms + std::chrono::milliseconds(call / 4));
    calls.Time([&] { REQUIRE(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok()); });
  }
  MESSAGE("calls: ", calls.Text());
  MESSAGE("a byte over loopback and back, without gRPC: ", round_trips.Text());
  // Without the heartbeat, on either side, about 90. A machine whose sleeping threads take milliseconds to wake adds them.
  CHECK(calls.At(0.99) < std::max(4'000us, 2 * round_trips.At(0.99)));
}

}  // namespace penstock::test
