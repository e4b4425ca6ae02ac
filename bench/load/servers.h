#pragma once

// The echo servers that the load program measures against.

#include <memory>
#include <string>

namespace load {

class RunningServer {
 public:
  virtual ~RunningServer() = default;
  virtual std::string address() const = 0;
};

// "raw": grpc++'s callback server with DefaultReactor; "penstock". Null, with a line on stderr, where it doesn't start.
std::unique_ptr<RunningServer> StartServer(const std::string& kind);

}  // namespace load
