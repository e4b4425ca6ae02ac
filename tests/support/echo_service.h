#pragma once

// The Echo service of the tests on plain grpc++, without anything of penstock's: what penstock's client is tested against,
// and what its server is compared with. It does what each request asks for (proto/penstock/test/v1/echo.proto):
//
//   unary   waits delay_ms (-1: until cancelled), then answers with text, reply_bytes of payload, code, message, trailers
//   Down    sends count messages (-1: until ended), interval_ms apart, waits delay_ms, then ends with code
//   Up      counts messages until the client's end, or ends at once with the code of a message that has one
//   Bidi    answers each message with count messages (0 counts as 1), interval_ms apart, delay_ms later; a message with a
//           code ends the stream with it, and so does, with OK, the client's end. It sends nothing before the first
//           message, unless the call carries the metadata `echo-send-first`, or EchoOptions says so: then one greeting.
//
//     EchoServer server({.pod = "a"});
//     auto client = penstock::Client::Create({.address = server.address(), ...});
//     CHECK(server.echo().counts().unary == 1);
//
// Threads: every member may be called from any thread.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "penstock/test/v1/echo.grpc.pb.h"

namespace penstock::test {

// The namespace of the generated code, which penstock::test::v1 is.
using EchoRequest = v1::EchoRequest;
using EchoResponse = v1::EchoResponse;

struct EchoCall {
  std::string method;  // "Unary", "Down", …
  std::multimap<std::string, std::string> metadata;
  std::chrono::system_clock::time_point deadline;
};

struct EchoOptions {
  std::string pod = "pod";
  bool headers_at_once = false;   // streams send their headers before anything else
  bool bidi_sends_first = false;  // as if each Bidi call carried `echo-send-first`
  std::function<void(const EchoCall&)> on_call = {};  // as each call begins, on gRPC's threads
};

struct EchoCounts {
  std::uint64_t unary = 0;  // Unary, Repeatable, Idempotent and OnceOnly
  std::uint64_t streams = 0;
  std::uint64_t open_unary = 0;
  std::uint64_t open_streams = 0;
  std::uint64_t cancelled = 0;  // calls of any kind whose handler heard of a cancellation
  std::map<std::string, std::uint64_t> calls;
};

class EchoStream;

class EchoService final : public v1::Echo::CallbackService {
 public:
  explicit EchoService(EchoOptions options = {}) : options_(std::move(options)) {}

  EchoCounts counts() const;

  // Blocks until the predicate holds; false when 30 s were not enough.
  bool WaitUntil(const std::function<bool(const EchoCounts&)>& predicate,
                 std::chrono::nanoseconds limit = std::chrono::seconds(30)) const;

  // Ends every open stream with the status, and those that open later as well when asked; how many were open.
  std::size_t EndStreams(const grpc::Status& status, bool later_ones_too = false);

  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*) override;
  grpc::ServerUnaryReactor* Repeatable(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*) override;
  grpc::ServerUnaryReactor* Idempotent(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*) override;
  grpc::ServerUnaryReactor* OnceOnly(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*) override;
  grpc::ServerWriteReactor<EchoResponse>* Down(grpc::CallbackServerContext*, const EchoRequest*) override;
  grpc::ServerReadReactor<EchoRequest>* Up(grpc::CallbackServerContext*, EchoResponse*) override;
  grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Bidi(grpc::CallbackServerContext*) override;

  // For the reactors.
  const EchoOptions& options() const { return options_; }
  void Began(EchoStream* stream, const char* method, const grpc::CallbackServerContext& context);
  void Cancelled();
  void Ended(EchoStream* stream);

 private:
  EchoOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // All guarded by mutex_.
  EchoCounts counts_;
  std::set<EchoStream*> streams_;
  bool end_later_ones_ = false;
  grpc::Status end_status_;
};

// An EchoService on a grpc::Server of its own, on a free port of 127.0.0.1 unless another address is given.
struct EchoServerOptions {
  EchoOptions echo = {};
  std::string address = "127.0.0.1:0";
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  std::function<void(grpc::ServerBuilder&)> configure = {};
};

class EchoServer {
 public:
  explicit EchoServer(EchoOptions echo = {}) : EchoServer(EchoServerOptions{.echo = std::move(echo)}) {}
  // Ends the program with a message when it cannot listen.
  explicit EchoServer(EchoServerOptions options);
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;
  // Cancels what is still open.
  ~EchoServer();

  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  EchoService& echo() { return echo_; }
  grpc::Server& server() { return *server_; }

  // gRPC's own shutdown: what is in flight may end until then, and is cancelled after.
  void Shutdown(std::chrono::milliseconds grace = {});

 private:
  EchoService echo_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace penstock::test
