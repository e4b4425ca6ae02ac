// A service of several pods, in one process and in processes of their own, behind one address and headless.
#include <doctest/doctest.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "penstock/test/v1/echo.grpc.pb.h"
#include "penstock/testing/frame_log.h"
#include "penstock/testing/pods.h"
#include "penstock/testing/resolver.h"
#include "support/echo_pod.h"

using namespace std::chrono_literals;
using penstock::test::EchoPods;
using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;
namespace testing = penstock::testing;

namespace {

std::unique_ptr<testing::Service> MakeService(testing::ServiceSettings settings) {
  auto service = testing::Service::Create(std::move(settings));
  if (!service.ok()) FAIL(service.error().message());
  return *std::move(service);
}

std::unique_ptr<Echo::Stub> StubTo(const std::string& target, const char* policy = "pick_first") {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetLoadBalancingPolicyName(policy);
  return Echo::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
}

// Which pod answers; the status's code where none does.
std::string Ask(Echo::Stub& stub, std::chrono::milliseconds limit = 30s) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  context.set_wait_for_ready(true);
  EchoResponse response;
  const grpc::Status status = stub.Unary(&context, EchoRequest(), &response);
  return status.ok() ? response.pod() : std::to_string(status.error_code());
}

// Asks on a connection of its own.
std::string AskAnew(const testing::Service& service) { return Ask(*StubTo(service.address())); }

// Until that pod answers: the synchronous client notices the end of a connection only when it asks.
bool AskUntil(Echo::Stub& stub, const std::string& pod) {
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < limit) {
    if (Ask(stub) == pod) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("X2: new connections take turns over the ready pods, of one process and of their own") {
  for (const bool own_process : {false, true}) {
    const auto service = MakeService({.make_pod = EchoPods({.own_process = own_process})});
    std::map<std::string, int> answers;
    for (int i = 0; i < 6; ++i) ++answers[AskAnew(*service)];
    CHECK(answers == std::map<std::string, int>{{"pod-0", 2}, {"pod-1", 2}, {"pod-2", 2}});
    service->Drain(1);
    CHECK(service->ready() == std::vector<std::size_t>{0, 2});
    for (int i = 0; i < 4; ++i) CHECK(AskAnew(*service) != "pod-1");
    service->Ready(1);
    service->Drain(0);
    service->Drain(2);
    CHECK(AskAnew(*service) == "pod-1");
    CHECK(service->name_server().empty());
  }
}

TEST_CASE("X2: a pod is replaced: the old one leaves in order, with GOAWAY, and its client moves on") {
  for (const bool own_process : {false, true}) {
    const auto log = std::make_shared<testing::FrameLog>();
    const auto service = MakeService(
        {.make_pod = EchoPods({.own_process = own_process}), .pods = 1, .router = {.frame_log = log}});
    const auto stub = StubTo(service->address());
    CHECK(Ask(*stub) == "pod-0");
    const auto started = service->Start();
    REQUIRE(started.ok());
    CHECK(*started == 1);
    service->Shutdown(0);
    CHECK(service->pod(0).Wait(penstock::Duration::max()) == 0);
    CHECK(log->Count(1, true, testing::FrameType::kGoaway) > 0);
    CHECK(Ask(*stub) == "pod-1");
    const auto replaced = service->Replace(1);
    REQUIRE(replaced.ok());
    CHECK(Ask(*stub) == "pod-2");
    CHECK(service->pod(1).Wait() == 0);
    CHECK(service->size() == 3);
  }
}

TEST_CASE("X2: a killed pod dies without a word, and its router drops it at once") {
  for (const bool own_process : {false, true}) {
    const auto log = std::make_shared<testing::FrameLog>();
    const auto service = MakeService(
        {.make_pod = EchoPods({.own_process = own_process}), .pods = 2, .router = {.frame_log = log}});
    const auto stub = StubTo(service->address());
    CHECK(Ask(*stub) == "pod-0");
    service->Kill(0);
    CHECK(log->Count(1, true, testing::FrameType::kGoaway) == 0);
    CHECK(AskUntil(*stub, "pod-1"));
    for (int i = 0; i < 3; ++i) CHECK(AskAnew(*service) == "pod-1");
    if (own_process) CHECK(service->pod(0).Wait() == 128 + 9);
  }
}

TEST_CASE("X2: a frozen pod answers nothing and goes on when it is thawed") {
  for (const bool own_process : {false, true}) {
    const auto service = MakeService({.make_pod = EchoPods({.own_process = own_process}), .pods = 1});
    const auto stub = StubTo(service->address());
    CHECK(Ask(*stub) == "pod-0");
    service->Freeze(0);
    CHECK(Ask(*stub, 100ms) == std::to_string(grpc::StatusCode::DEADLINE_EXCEEDED));
    CHECK(Ask(*StubTo(service->address()), 100ms) == std::to_string(grpc::StatusCode::DEADLINE_EXCEEDED));
    service->Thaw(0);
    CHECK(Ask(*stub) == "pod-0");
  }
}

TEST_CASE("X2: a plain pod in a process of its own shuts down by gRPC's means") {
  const auto service = MakeService({.make_pod = EchoPods({.own_process = true, .plain = true}), .pods = 1});
  CHECK(AskAnew(*service) == "pod-0");
  CHECK(service->Stop(0) == 0);
  CHECK(service->pod(0).Wait() == 0);
}

TEST_CASE("X2: a headless service's name resolves to every ready pod") {
  const auto service = MakeService({.make_pod = EchoPods(), .headless = true});
  const std::string target = "dns://" + service->name_server() + "/" + service->address();
  const auto spread = StubTo(target, "round_robin");
  std::map<std::string, int> answers;
  // round_robin begins with whatever is connected first.
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (answers.size() < 3 && std::chrono::steady_clock::now() < limit) ++answers[Ask(*spread)];
  CHECK(answers.size() == 3);
  CHECK(answers.count("pod-2") == 1);

  service->Drain(0);
  service->Drain(1);
  CHECK(Ask(*StubTo(target)) == "pod-2");
  const auto started = service->Start();
  REQUIRE(started.ok());
  service->Kill(2);
  CHECK(Ask(*StubTo(target)) == "pod-3");
  CHECK(service->router(3).stats().accepted >= 1);
}

TEST_CASE("X2: a frame log tells the connections of a headless service's pods apart") {
  const auto log = std::make_shared<testing::FrameLog>();
  const auto service = MakeService({.make_pod = EchoPods(), .headless = true, .router = {.frame_log = log}});
  for (std::size_t pod = 0; pod < 3; ++pod) {
    CHECK(Ask(*StubTo(service->router(pod).address())) == "pod-" + std::to_string(pod));
  }
  CHECK(log->connections() == std::vector<std::uint64_t>{1, 2, 3});
  for (std::uint64_t connection = 1; connection <= 3; ++connection) {
    CHECK(log->target(connection) == service->pod(static_cast<std::size_t>(connection - 1)).port());
    CHECK_FALSE(log->broken(connection));
    CHECK(log->Count(connection, false, testing::FrameType::kHeaders) == 1);
  }
}

TEST_CASE("X2: a pod may be started by a pod, and from a process that ignores its children's end") {
  // As AnnouncePort's process has it.
  setenv("PENSTOCK_TESTING_POD_FD", "1000000", 1);
  {
    const auto service = MakeService({.make_pod = EchoPods({.own_process = true}), .pods = 1});
    CHECK(AskAnew(*service) == "pod-0");
  }
  unsetenv("PENSTOCK_TESTING_POD_FD");

  const auto before = std::signal(SIGCHLD, SIG_IGN);
  {
    const auto service = MakeService({.make_pod = EchoPods({.own_process = true}), .pods = 1});
    CHECK(AskAnew(*service) == "pod-0");
    service->Kill(0);
    CHECK(service->pod(0).Wait() == 255);
    CHECK_FALSE(service->pod(0).Freeze());
  }
  std::signal(SIGCHLD, before);
}

TEST_CASE("X2: what does not come up says why") {
  CHECK_FALSE(testing::Service::Create({}).ok());
  const auto nothing = testing::StartProcessPod({.command = {"/nonexistent/program"}});
  REQUIRE_FALSE(nothing.ok());
  CHECK(nothing.error().message().find("/nonexistent/program") != std::string::npos);
  const auto mute = testing::StartProcessPod({.command = {"/bin/true"}});
  REQUIRE_FALSE(mute.ok());
  CHECK(mute.error().message().find("ended before it announced a port") != std::string::npos);
  const auto slow = testing::StartProcessPod({.command = {"/bin/sleep", "60"}, .start_limit = 20ms});
  REQUIRE_FALSE(slow.ok());
  CHECK(slow.error().message().find("in time") != std::string::npos);
  const auto service = testing::Service::Create({.make_pod = [](std::size_t) {
    return testing::MakeServerPod({.address = "nonsense", .plaintext = true}, {});
  }});
  REQUIRE_FALSE(service.ok());
  CHECK(service.error().message().find("nonsense") != std::string::npos);
}
