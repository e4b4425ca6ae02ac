// docs/observability.md's listing for Prometheus, and that a scrape finds the metrics.
#include <doctest/doctest.h>
#include <penstock/client/client.h>
#include <penstock/prometheus/exporter.h>
#include <prometheus/exposer.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "support/server_fixture.h"

namespace penstock::test {
namespace {

std::string Scrape(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  REQUIRE(::send(socket, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::recv(socket, buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(size));
  ::close(socket);
  return answer;
}

TEST_CASE("docs/observability.md: Prometheus scrapes what a client and a server count") {
  const std::string where = "127.0.0.1:0";
  auto exporter = penstock::prometheus::Exporter::Create();
  ::prometheus::Exposer exposer(where);  // "0.0.0.0:9464"
  exposer.RegisterCollectable(exporter);

  GuardedEcho service;
  auto settings = LocalSettings();
  settings.observers = {exporter->ForServer()};
  auto server = MakeServer(std::move(settings), {&service});
  auto client = Client::Create({.address = AddressOf(*server), .plaintext = true, .observer = exporter->ForClient()});
  REQUIRE(client.ok());
  CHECK(client->CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {}).ok());
  REQUIRE(exposer.GetListeningPorts().size() == 1);
  CHECK(Eventually([&] { return Scrape(exposer.GetListeningPorts().front()).find("rpc_server_call_duration_seconds") != std::string::npos; }));
  CHECK(Scrape(exposer.GetListeningPorts().front()).find("penstock_circuit_state") != std::string::npos);
}

}  // namespace
}  // namespace penstock::test
