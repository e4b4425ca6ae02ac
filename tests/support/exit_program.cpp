// A program that ends with clients alive and calls in every state, one way or another: its exit code must be 7.
//
//     exit_program MODE SERVER, where SERVER is an Echo server's address

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/test/v1/echo.grpc.pb.h"

using namespace penstock;
using namespace std::chrono_literals;

namespace {

std::optional<Client> static_client;
std::vector<Client>* leaked_clients = nullptr;

Client Make(const std::string& address) {
  Result<Client> made = Client::Create({.address = address, .plaintext = true});
  if (!made.ok()) std::_Exit(1);
  return *std::move(made);
}

// Calls that end at once, that wait, that are in backoff and that wait for a connection.
void Begin(Client& client, int each) {
  for (int call = 0; call < each; ++call) {
    for (const int kind : {0, 1, 2}) {
      test::v1::EchoRequest request;
      if (kind == 1) request.set_delay_ms(-1);
      if (kind == 2) request.set_code(grpc::StatusCode::UNAVAILABLE);
      client.Call(PENSTOCK_METHOD(test::v1::Echo, Repeatable), std::move(request), {},
                  [](const CallResult&, test::v1::EchoResponse&) {});
    }
  }
  client.Connected()->Check(SteadyClock().Now() + 10s, [](bool) {});
}

// One call after another, until the process is gone. On a client that nothing destroys: whoever calls must know it alive.
void Chain(Client& client) {
  client.Call(PENSTOCK_METHOD(test::v1::Echo, Repeatable), {}, {},
              [&client](const CallResult&, test::v1::EchoResponse&) { Chain(client); });
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::string_view mode = arguments[1];
  const std::string address = arguments[2];
  Client unreachable = Make("127.0.0.1:1");
  Begin(unreachable, 5);
  Chain(*new Client(Make(address)));
  if (mode == "static") {
    static_client = Make(address);
    Begin(*static_client, 10);
  } else if (mode == "leaked") {
    leaked_clients = new std::vector<Client>;
    leaked_clients->push_back(Make(address));
    leaked_clients->push_back(Make(address));
    for (Client& client : *leaked_clients) Begin(client, 10);
  } else if (mode == "local") {
    Client local = Make(address);
    Begin(local, 10);
    std::this_thread::sleep_for(5ms);
    return 7;
  } else if (mode == "callback") {
    // From a completion, with everything in flight.
    static_client = Make(address);
    Begin(*static_client, 10);
    static_client->Call(PENSTOCK_METHOD(test::v1::Echo, Unary), {}, {},
                        [](const CallResult&, test::v1::EchoResponse&) { std::exit(7); });
    for (;;) std::this_thread::sleep_for(1s);
  } else if (mode == "thread") {
    static_client = Make(address);
    Begin(*static_client, 10);
    std::thread([] { std::exit(7); }).detach();
    for (;;) std::this_thread::sleep_for(1s);
  } else {
    return 2;
  }
  std::this_thread::sleep_for(5ms);
  std::exit(7);
}
