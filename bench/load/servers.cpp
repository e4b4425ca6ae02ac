#include "servers.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>

#include "penstock/server/server.h"
#include "penstock/test/v1/echo.grpc.pb.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

class RawServer final : public RunningServer {
 public:
  RawServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  bool ok() const { return server_ != nullptr; }
  std::string address() const override { return fmt::format("127.0.0.1:{}", port_); }

 private:
  class Service final : public Echo::CallbackService {
    grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                    EchoResponse* response) override {
      response->set_text(request->text());
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class PenstockServer final : public RunningServer {
 public:
  PenstockServer()
      : server_(penstock::Server::Create({.address = "127.0.0.1:0", .plaintext = true}, {&service_})) {}
  bool ok() const { return server_.ok(); }
  std::string address() const override { return fmt::format("127.0.0.1:{}", (*server_)->port()); }

 private:
  class Service final : public penstock::Service<Echo> {
    grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                    EchoResponse* response) override {
      return Handle(context, [&] {
        response->set_text(request->text());
        return grpc::Status::OK;
      });
    }
  };

  Service service_;
  penstock::Result<std::unique_ptr<penstock::Server>> server_;
};

}  // namespace

std::unique_ptr<RunningServer> StartServer(const std::string& kind) {
  if (kind == "raw") {
    auto server = std::make_unique<RawServer>();
    if (server->ok()) return server;
  }
  if (kind == "penstock") {
    auto server = std::make_unique<PenstockServer>();
    if (server->ok()) return server;
  }
  fmt::print(stderr, "bench/load: the server '{}' did not start\n", kind);
  return nullptr;
}

}  // namespace load
