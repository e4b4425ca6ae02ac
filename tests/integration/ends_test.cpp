// How clients end: dropped, closed, forked, with calls in every state.

#include <doctest/doctest.h>
#include <spawn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/router.h"
#include "support/client_calls.h"
#include "support/closing.h"
#include "support/echo_service.h"
#include "support/exits.h"

extern char** environ;

namespace penstock::test {

TEST_CASE("L9: closing with 100 calls in flight, 100 in backoff and 100 without a connection takes under a second") {
  for (const bool waits : {true, false}) CHECK(CloseWithCallsInEveryState(waits) < 5s);  // 1 s on a machine that does nothing else.
}

TEST_CASE("L9: calls made while the client is closed on another thread each complete once") {
  EchoServer server;
  for (int round = 0; round < 10; ++round) {
    Client client = MakeClient({.address = server.address()});
    ManyCalls calls(100);
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      client.Close();
    });
    calls.Begin(client, {});
    closer.join();
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
    calls.CheckEachOnce();
  }
}

TEST_CASE("L9: CloseAndWait waits for the completions of calls that were refused after the closing too") {
  Client client = MakeClient({.address = "127.0.0.1:1"});
  client.Close();
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> told{false};
    client.Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult& result, v1::EchoResponse&) {
      CHECK(result.status.error_code() == grpc::StatusCode::CANCELLED);
      std::this_thread::sleep_for(5ms);
      told = true;
    });
    CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
    CHECK(told);
  }
  // And what they need outlives the client that is dropped meanwhile.
  std::promise<void> last;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult&, v1::EchoResponse&) { last.set_value(); });
  Client(std::move(client));
  last.get_future().get();
}

TEST_CASE("L9: CloseAndWait refuses on a callback thread, and closes all the same") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::promise<bool> waited;
  client.Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult&, v1::EchoResponse&) {
    waited.set_value(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
  });
  CHECK_FALSE(waited.get_future().get());
  CHECK(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).result.status.error_code() ==
        grpc::StatusCode::CANCELLED);
  CHECK(client.CloseAndWait(std::chrono::steady_clock::now() + kLimit));
}

TEST_CASE("L13: the last client may be dropped in a completion, and in two at once") {
  EchoServer server;
  for (int round = 0; round < 20; ++round) {
    std::array<std::unique_ptr<Client>, 2> clients;
    std::barrier both(2);
    std::atomic<int> dropped{0};
    for (auto& client : clients) client = std::make_unique<Client>(MakeClient({.address = server.address()}));
    for (auto& client : clients) {
      client->Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult&, v1::EchoResponse&) {
        if (round % 2 == 0) both.arrive_and_wait();  // There are two callback threads here at the least.
        client.reset();
        ++dropped;
      });
    }
    REQUIRE(Eventually([&] { return dropped == 2; }));
  }
}

TEST_CASE("L13: a client may be dropped by its own cancelled call, with others in flight") {
  EchoServer server;
  auto client = std::make_unique<Client>(MakeClient({.address = server.address()}));
  std::atomic<int> ended{0};
  std::promise<void> dropped;
  for (int call = 0; call < 20; ++call) {
    client->Call(PENSTOCK_METHOD(v1::Echo, Unary), Hanging(), {},
                 [&](const CallResult&, v1::EchoResponse&) { ++ended; });
  }
  CallHandle handle =
      client->Call(PENSTOCK_METHOD(v1::Echo, Unary), Hanging(), {}, [&](const CallResult&, v1::EchoResponse&) {
        client.reset();
        dropped.set_value();
      });
  handle.Cancel();
  dropped.get_future().get();
  CHECK(Eventually([&] { return ended == 20; }));
}

TEST_CASE("L9: a completion may take a lock under which its call was made") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  Client unreachable = MakeClient({.address = "127.0.0.1:1", .max_attempts = 1});
  std::mutex mutex;
  std::atomic<int> completed{0};
  for (int call = 0; call < 200; ++call) {
    for (Client* which : {&client, &unreachable}) {
      const std::lock_guard lock(mutex);
      which->Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult&, v1::EchoResponse&) {
        const std::lock_guard inside(mutex);
        ++completed;
      });
    }
  }
  // A closed client's calls fail without an attempt, and still not inside Call().
  client.Close();
  {
    const std::lock_guard lock(mutex);
    client.Call(PENSTOCK_METHOD(v1::Echo, Unary), {}, {}, [&](const CallResult&, v1::EchoResponse&) {
      const std::lock_guard inside(mutex);
      ++completed;
    });
  }
  CHECK(Eventually([&] { return completed == 401; }));
}

TEST_CASE("L9: calls chained from completions do not grow the stack") { ChainCalls(10'000); }

TEST_CASE("G7: a program may exit with clients alive and calls in every state") { ExitAgainAndAgain(4); }

TEST_CASE("G8: fork and exec under traffic disturbs no call") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  std::atomic<bool> stopping{false};
  std::atomic<int> failed{0};
  std::atomic<std::uint64_t> answered{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&] {
      while (!stopping) {
        if (client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok()) {
          ++answered;
        } else {
          ++failed;
        }
      }
    });
  }
  for (int child = 0; child < 30; ++child) {
    pid_t process = -1;
    if (child % 2 == 0) {
      process = ::fork();
      if (process == 0) {
        ::execl("/bin/true", "true", nullptr);
        ::_exit(127);
      }
    } else {
      char name[] = "true";
      char* arguments[] = {name, nullptr};
      REQUIRE(::posix_spawn(&process, "/bin/true", nullptr, nullptr, arguments, environ) == 0);
    }
    int status = 0;
    REQUIRE(::waitpid(process, &status, 0) == process);
    CHECK(status == 0);
  }
  REQUIRE(Eventually([&] { return answered > 100; }));
  stopping = true;
  for (auto& caller : callers) caller.join();
  CHECK(failed == 0);
}

TEST_CASE("G8: after a fork without exec a client is refused with a message, not hung") {
  EchoServer server;
  Client client = MakeClient({.address = server.address()});
  REQUIRE(client.CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
  const pid_t process = ::fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    const Result<Client> refused = Client::Create({.address = "127.0.0.1:1", .plaintext = true});
    ::_exit(!refused.ok() && refused.error().message().find("fork") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(process, &status, 0) == process);
  CHECK(status == 0);
}

}  // namespace penstock::test
