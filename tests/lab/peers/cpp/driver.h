#pragma once

// The side of a C++ peer that makes calls when it is told to: Driver, on a plain synchronous server of its own.
//
//     DriverServer driver(memory, [&](const v1::Task& task) { return caller.Call(task); });
//
// Threads: the function is called on gRPC's threads, several at once, and may block.
// Ownership: the memory outlives the server.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "lab/peers/cpp/work.h"
#include "penstock/lab/v1/lab.grpc.pb.h"

namespace penstock::lab {

// How one call ended.
struct CallEnd {
  grpc::Status status;
  std::string server = {};
  int messages = 0;
  int attempts = 1;
};

class DriverServer {
 public:
  DriverServer(const Memory& memory, std::function<CallEnd(const v1::Task&)> call);
  ~DriverServer();

  int port() const noexcept { return port_; }
  void Wait() { server_->Wait(); }

 private:
  class Service;
  std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace penstock::lab
