// A program of somebody else's: a server and a client of penstock in one process, with a proto of its own.
#include <penstock/client/client.h>
#include <penstock/server/server.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "ping.grpc.pb.h"

namespace {

using namespace std::chrono_literals;

class PingService final : public penstock::Service<consumer::v1::Ping> {
  grpc::ServerUnaryReactor* Send(grpc::CallbackServerContext* context, const consumer::v1::PingRequest* request,
                                 consumer::v1::PingResponse* response) override {
    return Handle(context, [&] {
      if (request->text().empty()) throw grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "text is empty");
      response->set_text(request->text());
      return grpc::Status::OK;
    });
  }
  grpc::ServerUnaryReactor* Count(grpc::CallbackServerContext* context, const consumer::v1::PingRequest*,
                                  consumer::v1::PingResponse*) override {
    return Handle(context, [] { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "counted, but not told"); });
  }
};

}  // namespace

int main() {
  PingService service;
  auto server = penstock::Server::Create({.address = "127.0.0.1:0", .plaintext = true, .drain = 0s}, {&service});
  if (!server.ok()) return std::fprintf(stderr, "%s\n", server.error().message().c_str()), 1;
  auto client = penstock::Client::Create(
      {.address = "127.0.0.1:" + std::to_string((*server)->port()), .plaintext = true, .timeout = 20s});
  if (!client.ok()) return std::fprintf(stderr, "%s\n", client.error().message().c_str()), 1;

  consumer::v1::PingRequest request;
  request.set_text("hello");
  const auto answered = client->CallAndWait(PENSTOCK_METHOD(consumer::v1::Ping, Send), request);
  const auto refused = client->CallAndWait(PENSTOCK_METHOD(consumer::v1::Ping, Send), {});
  const auto health = client->CallAndWait(PENSTOCK_METHOD(grpc::health::v1::Health, Check), {});
  const auto counted = client->CallAndWait(PENSTOCK_METHOD(consumer::v1::Ping, Count), {});
  const bool good = counted.result.attempts == 1 && counted.result.reason == penstock::EndReason::kStopped &&
                    health.response.status() == grpc::health::v1::HealthCheckResponse::SERVING &&
                    answered.ok() && answered.response.text() == "hello" &&
                    refused.result.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
                    !penstock::Client::Create({.address = "no port", .plaintext = true}).ok();
  std::printf("%s, %s\n", answered.result.status.error_message().c_str(), refused.result.status.error_message().c_str());

  (*server)->Shutdown();
  return (*server)->Wait() == 0 && good ? 0 : 1;
}
