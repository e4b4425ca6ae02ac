#include "penstock/testing/router.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "penstock/testing/frame_log.h"

using namespace penstock;
using namespace std::chrono_literals;
using testing::Router;
using testing::RouterStats;

namespace {

// A blocking TCP socket.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() { Close(); }

  static Socket Connect(std::uint16_t port) {
    Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket.descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return socket;
  }

  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }
  void EndOfFile() { shutdown(descriptor_, SHUT_WR); }
  bool Send(const std::string& bytes) {
    return send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // What has come, at most `most` bytes; empty at the end, "!" after a reset, "?" when nothing came in time.
  std::string Read(std::size_t most = 65536, std::chrono::milliseconds limit = 30s) {
    const timeval time{.tv_sec = limit.count() / 1000, .tv_usec = limit.count() % 1000 * 1000};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    std::string bytes(most, '\0');
    const ssize_t count = recv(descriptor_, bytes.data(), most, 0);
    if (count < 0) return errno == EAGAIN ? "?" : "!";
    bytes.resize(static_cast<std::size_t>(count));
    return bytes;
  }
  std::string ReadExactly(std::size_t count) {
    std::string all;
    while (all.size() < count) {
      const std::string some = Read(count - all.size());
      if (some.empty() || some == "!" || some == "?") break;
      all += some;
    }
    return all;
  }

 private:
  int descriptor_;
};

// Says its name to whoever connects, then sends back what it gets.
class EchoTarget {
 public:
  explicit EchoTarget(std::string name) : name_(std::move(name)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 1024) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Accept(); });
  }
  ~EchoTarget() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    for (std::thread& serving : serving_) serving.join();
  }

  std::uint16_t port() const { return port_; }
  int accepted() const { return accepted_; }

 private:
  void Accept() {
    for (;;) {
      const int descriptor = accept(listener_, nullptr, nullptr);
      if (descriptor < 0) return;
      ++accepted_;
      serving_.emplace_back([this, descriptor] {
        Socket client(descriptor);
        if (!client.Send(name_)) return;
        for (;;) {
          const std::string bytes = client.Read();
          if (bytes.empty() || bytes == "!" || bytes == "?" || !client.Send(bytes)) return;
        }
      });
    }
  }

  std::string name_;
  int listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> accepted_{0};
  std::thread thread_;
  std::vector<std::thread> serving_;
};

std::unique_ptr<Router> MakeRouter(testing::RouterSettings settings) {
  auto router = Router::Create(std::move(settings));
  REQUIRE(router.ok());
  return std::move(router.value());
}

}  // namespace

TEST_CASE("X2: new connections reach the chosen target, those that exist stay") {
  EchoTarget a("a");
  EchoTarget b("b");
  const auto router = MakeRouter({.targets = {a.port()}});
  Socket first = Socket::Connect(router->port());
  CHECK(first.Read() == "a");
  router->SetTargets({b.port()});
  Socket second = Socket::Connect(router->port());
  CHECK(second.Read() == "b");
  CHECK(first.Send("still here"));
  CHECK(first.ReadExactly(10) == "still here");
  const RouterStats stats = router->stats();
  CHECK(stats.accepted == 2);
  CHECK(stats.targets.at(a.port()).live == 1);
  CHECK(stats.targets.at(b.port()).total == 1);
  CHECK(router->connections().size() == 2);
  CHECK(router->connections().at(1).target == b.port());
}

TEST_CASE("X2: several targets take turns") {
  EchoTarget a("a");
  EchoTarget b("b");
  const auto router = MakeRouter({.targets = {a.port(), b.port()}});
  std::string order;
  for (int i = 0; i < 6; ++i) order += Socket::Connect(router->port()).Read();
  CHECK(order == "ababab");
}

TEST_CASE("X2: the end of file passes each way on its own, and the connection ends with both") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}});
  Socket client = Socket::Connect(router->port());
  CHECK(client.Send("bye"));
  client.EndOfFile();
  CHECK(client.ReadExactly(4) == "abye");
  CHECK(client.Read() == "");
  CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.live == 0; }, Duration::max()));
}

TEST_CASE("X2: a target that refuses, and none at all, reset the client") {
  std::uint16_t nobody = 0;
  { nobody = EchoTarget("gone").port(); }
  const auto router = MakeRouter({.targets = {nobody}});
  CHECK(Socket::Connect(router->port()).Read() == "!");
  router->SetTargets({});
  CHECK(Socket::Connect(router->port()).Read() == "!");
  CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.refused == 2 && stats.live == 0; }));
}

TEST_CASE("X2: a delay holds for each way, keeps the order, and nothing is lost when it changes") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}, .delay = 50ms});
  Socket client = Socket::Connect(router->port());
  CHECK(client.Read() == "a");
  const auto start = std::chrono::steady_clock::now();
  CHECK(client.Send("12345"));
  CHECK(client.ReadExactly(5) == "12345");
  CHECK(std::chrono::steady_clock::now() - start >= 100ms);
  std::string sent;
  for (int i = 0; i < 200; ++i) {
    if (i == 50) router->SetDelay(5ms);
    if (i == 100) router->SetDelay(0ms);
    if (i == 150) router->SetDelay(1ms, 7ms);
    const std::string piece = std::to_string(i) + ",";
    CHECK(client.Send(piece));
    sent += piece;
  }
  CHECK(client.ReadExactly(sent.size()) == sent);
}

TEST_CASE("X2: a connection held in its handshake is accepted on both sides and forwards nothing until released") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}});
  router->HoldNew(true);
  Socket held = Socket::Connect(router->port());
  CHECK(held.Send("hello"));
  CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.held == 1; }));
  router->HoldNew(false);
  Socket free = Socket::Connect(router->port());
  CHECK(free.Read() == "a");
  CHECK(held.Read(1, 20ms) == "?");
  while (a.accepted() < 2) std::this_thread::yield();
  CHECK(router->connections().at(0).held);
  router->Release();
  CHECK(held.ReadExactly(6) == "ahello");
  CHECK(router->stats().held == 0);
}

TEST_CASE("X2: a stalled connection loses nothing and goes on when released") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}});
  Socket client = Socket::Connect(router->port());
  CHECK(client.Read() == "a");
  router->StallAll();
  CHECK(client.Send("later"));
  CHECK(client.Read(1, 20ms) == "?");
  router->Release();
  CHECK(client.ReadExactly(5) == "later");
}

TEST_CASE("X2: one connection, those of a target, or all are cut, in order or by a reset") {
  EchoTarget a("a");
  EchoTarget b("b");
  const auto router = MakeRouter({.targets = {a.port()}});
  Socket first = Socket::Connect(router->port());
  Socket second = Socket::Connect(router->port());
  CHECK(first.Read() == "a");
  CHECK(second.Read() == "a");
  CHECK(router->CutConnection(1));
  CHECK_FALSE(router->CutConnection(1));
  CHECK_FALSE(router->CutConnection(99));
  CHECK(first.Read() == "");
  CHECK(router->CutTarget(a.port(), Router::Cut::kReset) == 1);
  CHECK(second.Read() == "!");

  router->SetTargets({a.port(), b.port()});
  Socket third = Socket::Connect(router->port());
  Socket fourth = Socket::Connect(router->port());
  CHECK(third.Read() == "a");
  CHECK(fourth.Read() == "b");
  CHECK(router->DropTarget(a.port()) == 1);
  CHECK(third.Read() == "");
  CHECK(Socket::Connect(router->port()).Read() == "b");
  CHECK(Socket::Connect(router->port()).Read() == "b");
  CHECK(router->CutAll() >= 1);
  CHECK(fourth.Read() == "");
  CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.live == 0; }));
}

TEST_CASE("X2: a connection is cut in order also where bytes wait in it, and one whose other end stays is gone in the end") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}});
  for (const bool held : {true, false}) {
    router->HoldNew(held);
    Socket client = Socket::Connect(router->port());
    if (!held) CHECK(client.Read() == "a");
    CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.live == 1; }));
    if (!held) router->StallAll();
    CHECK(client.Send("nobody reads this"));
    CHECK(router->CutAll() == 1);
    CHECK(client.Read() == "");
    CHECK(client.Send("nor this"));
    // It does not close: it is closed.
    CHECK(client.Read(1, 1s) != "?");
  }
}

TEST_CASE("X2: a receiver that reads nothing stops the sender at the bound, and everything arrives in the end") {
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}, .delay = 1ms, .max_buffered_bytes = 64 * 1024});
  Socket client = Socket::Connect(router->port());
  const std::size_t size = std::size_t{32} << 20;
  std::thread sender([&] {
    const std::string piece(64 * 1024, 'x');
    for (std::size_t sent = 0; sent < size; sent += piece.size()) client.Send(piece);
  });
  // Nobody reads: what was taken from the client stands still at the sum of the buffers, far below what it wants to send.
  std::uint64_t before = 0;
  for (std::uint64_t now = 1; now != before; now = router->stats().bytes_to_server) {
    before = now;
    std::this_thread::sleep_for(100ms);
  }
  CHECK(before < size);
  CHECK(client.ReadExactly(size + 1).size() == size + 1);
  sender.join();
}

TEST_CASE("X2: thousands of connections leave nothing behind") {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  EchoTarget a("a");
  const auto router = MakeRouter({.targets = {a.port()}});
  for (int round = 0; round < 10; ++round) {
    std::vector<Socket> sockets;
    for (int i = 0; i < 200; ++i) sockets.push_back(Socket::Connect(router->port()));
    for (Socket& socket : sockets) CHECK(socket.Read() == "a");
  }
  CHECK(router->WaitUntil([](const RouterStats& stats) { return stats.accepted == 2000 && stats.live == 0; }));
  CHECK(router->connections().empty());
}

TEST_CASE("X2: a router is destroyed while connections are live, held, delayed and connecting") {
  EchoTarget a("a");
  for (int round = 0; round < 20; ++round) {
    auto router = MakeRouter({.targets = {a.port()}, .delay = round % 2 == 0 ? 0ms : 10ms});
    std::vector<Socket> sockets;
    for (int i = 0; i < 4; ++i) {
      router->HoldNew(i % 2 == 1);
      sockets.push_back(Socket::Connect(router->port()));
      sockets.back().Send("bytes under way");
    }
    router.reset();
    for (Socket& socket : sockets) socket.Close();
  }
}

TEST_CASE("X2: an address that is taken or makes no sense is an error that names it") {
  const auto router = MakeRouter({});
  const auto second = Router::Create({.port = router->port()});
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().message().find(router->address()) != std::string::npos);
  const auto odd = Router::Create({.host = "ledger"});
  REQUIRE_FALSE(odd.ok());
  CHECK(odd.error().message().find("\"ledger\"") != std::string::npos);
  CHECK(MakeRouter({.host = "127.0.0.9"})->address().starts_with("127.0.0.9:"));
}
