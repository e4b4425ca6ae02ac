// The rollout rule (S7) from the client's side: streams of every kind on pods that are shut down, reach their connections' age or
// are killed, with unary calls beside them. The breaker stays closed, no call is turned away, no stream lands on a pod that has
// begun to shut down, and every subscription goes on.
//
// By default a covering selection runs; with PENSTOCK_FULL=1 (suite slow) every combination does.
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/testing/certificates.h"
#include "penstock/testing/router.h"
#include "support/server_fixture.h"

extern char** environ;

namespace penstock::test {
namespace {

using testing::Router;
using std::chrono::steady_clock;

enum class Kind { kDown, kBidi, kUp };
enum class Cause { kShutdown, kTwoPods, kThreePods, kAge, kKill };
// kFails: the handler waits for a message first (or sends none) and finishes with an error when it is cancelled.
enum class Handler { kSends, kFails };

struct Case {
  int streams;
  Kind kind;
  Cause cause;
  bool tls;
  bool held;
  Handler handler;
};

std::string Text(const Case& c) {
  static constexpr const char* kKinds[] = {"server", "bidi", "client"};
  static constexpr const char* kCauses[] = {"shutdown", "two pods", "three pods", "age", "kill"};
  return std::to_string(c.streams) + " " + kKinds[static_cast<int>(c.kind)] + " streams, " + kCauses[static_cast<int>(c.cause)] +
         (c.tls ? ", TLS" : ", plain") + (c.held ? ", one held" : "") +
         (c.handler == Handler::kSends ? ", handler sends first" : ", handler reads first and fails");
}

// Waits for a message that does not come, and takes a cancellation for an error.
class FailingBidi final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  explicit FailingBidi(StreamEvents& events) : events_(events) {
    ++events_.opened;
    StartRead(&request_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&request_);
  }
  void OnCancelled() override { Finish({grpc::StatusCode::INTERNAL, "cancelled"}); }
  StreamEvents& events_;
  EchoRequest request_;
};

class GreetingBidi final : public ServerBidiReactor<EchoRequest, EchoResponse> {
 public:
  explicit GreetingBidi(StreamEvents& events) : events_(events) {
    ++events_.opened;
    StartWrite(&greeting_);
  }

 private:
  StreamEvents& events_;
  EchoResponse greeting_;
};

class FailingDown final : public ServerWriteReactor<EchoResponse> {
 public:
  explicit FailingDown(StreamEvents& events) { ++events.opened; }

 private:
  void OnCancelled() override { Finish({grpc::StatusCode::INTERNAL, "cancelled"}); }
};

void Configure(GuardedEcho& echo, Handler handler) {
  if (handler == Handler::kSends) {
    echo.on_bidi = [&echo](grpc::CallbackServerContext* context) {
      return GuardedEcho::StartIn<GreetingBidi>(context, echo.streams);
    };
  } else {
    echo.on_bidi = [&echo](grpc::CallbackServerContext* context) {
      return GuardedEcho::StartIn<FailingBidi>(context, echo.streams);
    };
    echo.on_down = [&echo](grpc::CallbackServerContext* context, const EchoRequest*) {
      return GuardedEcho::StartIn<FailingDown>(context, echo.streams);
    };
  }
}

// A pod in this process.
struct Pod {
  Pod(ServerSettings settings, Handler handler) {
    Configure(echo, handler);
    server = MakeServer(std::move(settings), {&echo});
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(server->port()); }
  GuardedEcho echo;
  std::unique_ptr<Server> server;
};

// A pod in a process of its own, to be killed: this program, running the helper below.
class PodProcess {
 public:
  PodProcess(Handler handler, const testing::Identity* identity) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kPortDescriptor);
    std::vector<std::string> environment{"POD_HANDLER=" + std::to_string(static_cast<int>(handler))};
    if (identity != nullptr) {
      environment.push_back("POD_CERTIFICATE=" + identity->certificate);
      environment.push_back("POD_KEY=" + identity->key);
    }
    std::vector<char*> pointers;
    for (std::string& text : environment) pointers.push_back(text.data());
    for (char** inherited = environ; *inherited != nullptr; ++inherited) pointers.push_back(*inherited);
    pointers.push_back(nullptr);
    std::string arguments[] = {"rollout_matrix_test", "--test-case=helper: a pod", "--no-skip"};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    REQUIRE(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, pointers.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    REQUIRE(read(ends[0], &port_, sizeof port_) == sizeof port_);
    close(ends[0]);
  }
  ~PodProcess() { Kill(); }
  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::uint16_t port() const { return port_; }

  static constexpr int kPortDescriptor = 17;

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

// One stream that goes on: what the user of it sees.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Cancel() = 0;
  int ups() const { return ups_; }
  bool ended() const { return ended_; }
  Duration longest_gap() const {
    std::lock_guard lock(mutex_);
    return longest_gap_;
  }
  std::string odd_end() const {
    std::lock_guard lock(mutex_);
    return odd_end_;
  }

 protected:
  void Down() {
    std::lock_guard lock(mutex_);
    if (!down_) gap_began_ = steady_clock::now();
    down_ = true;
  }
  void Up() {
    {
      std::lock_guard lock(mutex_);
      if (down_ && ups_ > 0) longest_gap_ = std::max<Duration>(longest_gap_, steady_clock::now() - gap_began_);
      down_ = false;
    }
    ++ups_;
  }
  void End(const grpc::Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (status.error_code() != grpc::StatusCode::CANCELLED) odd_end_ = status.error_message();
    }
    ended_ = true;
  }

 private:
  std::atomic<int> ups_{0};
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  bool down_ = true;
  steady_clock::time_point gap_began_;
  Duration longest_gap_{};
  std::string odd_end_;
};

class Subscribed final : public Stream {
 public:
  Subscribed(Client& client, const Case& c) {
    SubscriptionHooks<EchoRequest, EchoResponse> hooks;
    // A handler that sends nothing is heard by its headers.
    if (c.handler == Handler::kSends) {
      hooks.on_message = [this](EchoResponse&) { Up(); };
    } else {
      hooks.on_open = [this] { Up(); };
    }
    hooks.on_gap = [this](const Gap&) {
      Down();
      return GapDecision::kGoOn;
    };
    hooks.on_end = [this](const CallResult& result) { End(result.status); };
    EchoRequest request;
    request.set_count(-1);
    if (c.kind == Kind::kDown) {
      subscription_ = client.Subscribe(PENSTOCK_METHOD(v1::Echo, Down), request, std::move(hooks));
    } else {
      subscription_ = client.Subscribe(PENSTOCK_METHOD(v1::Echo, Bidi), request, std::move(hooks));
    }
  }
  void Cancel() override { subscription_.Cancel(); }

 private:
  Subscription subscription_;
};

// A client stream, which its user opens again after UNAVAILABLE, and after CANCELLED before it had opened.
class Uploaded final : public Stream {
 public:
  explicit Uploaded(Client& client) : client_(client) { Open(); }
  void Cancel() override {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (current_ != nullptr) current_->Cancel();
  }

 private:
  struct Upload final : ClientWriteReactor<EchoRequest> {
    explicit Upload(Uploaded& with) : owner(with) { (void)StartWrite(&request); }
    void OnOpened() override {
      opened = true;
      owner.Up();
    }
    void OnDone(const CallResult& result) override {
      owner.Ended(result, opened);
      delete this;
    }
    Uploaded& owner;
    bool opened = false;
    EchoRequest request;
    EchoResponse response;
  };

  void Open() {
    std::lock_guard lock(mutex_);
    if (stopping_) return End(grpc::Status::CANCELLED);
    current_ = new Upload(*this);
    client_.Open(PENSTOCK_METHOD(v1::Echo, Up), {}, &current_->response, *current_);
  }
  void Ended(const CallResult& result, bool opened) {
    Down();
    {
      std::lock_guard lock(mutex_);
      current_ = nullptr;
    }
    const int code = result.status.error_code();
    if (code == grpc::StatusCode::UNAVAILABLE || (code == grpc::StatusCode::CANCELLED && !opened)) return Open();
    End(result.status);
  }

  Client& client_;
  std::mutex mutex_;
  Upload* current_ = nullptr;
  bool stopping_ = false;
};

// Unary calls at 200 a second.
class Load {
 public:
  explicit Load(Client& client) : client_(client), thread_([this] { Run(); }) {}
  ~Load() { Stop(); }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    Eventually([&] { return running_ == 0; });
  }
  std::atomic<int> calls{0}, rejected{0}, failed{0};
  std::string failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void Run() {
    for (auto next = steady_clock::now(); !stopping_; next += 5ms) {
      std::this_thread::sleep_until(next);
      ++running_;
      client_.Call(PENSTOCK_METHOD(v1::Echo, Unary), EchoRequest(), {}, [this](const CallResult& result, EchoResponse&) {
        ++calls;
        if (result.reason == EndReason::kRejected) ++rejected;
        if (!result.ok()) {
          ++failed;
          std::lock_guard lock(mutex_);
          failure_ = result.status.error_message();
        }
        --running_;
      });
    }
  }
  Client& client_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_{0};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread thread_;
};

struct Measured {
  Duration longest_gap{};
  int calls = 0;
};

Measured Run(const Case& c) {
  const std::string text = Text(c);
  CAPTURE(text);
  static const testing::CertificateAuthority authority;
  static const testing::Identity identity = authority.Issue();

  ServerSettings settings = LocalSettings();
  if (c.tls) {
    settings.plaintext = false;
    settings.tls = Tls{.certificate = identity.certificate, .key = identity.key};
  }
  if (c.cause == Cause::kAge) {
    settings.max_connection_age = 500ms;
    settings.max_connection_age_grace = 200ms;
  }
  std::deque<Pod> pods;
  std::deque<PodProcess> processes;
  const auto start_pod = [&]() -> std::uint16_t {
    if (c.cause != Cause::kKill) return pods.emplace_back(settings, c.handler).port();
    return processes.emplace_back(c.handler, c.tls ? &identity : nullptr).port();
  };

  auto router = *Router::Create({.targets = {start_pod()}});
  ClientSettings client_settings{.address = router->address()};
  if (c.tls) {
    client_settings.tls = Tls{.roots = authority.certificate()};
  } else {
    client_settings.plaintext = true;
  }
  auto created = Client::Create(client_settings);
  REQUIRE(created.ok());
  Client client = *std::move(created);

  std::deque<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < c.streams; ++i) {
    if (c.kind == Kind::kUp) {
      streams.push_back(std::make_unique<Uploaded>(client));
    } else {
      streams.push_back(std::make_unique<Subscribed>(client, c));
    }
  }
  const auto all_up = [&](int times) {
    return Eventually([&] { return std::all_of(streams.begin(), streams.end(), [&](const auto& s) { return s->ups() >= times; }); });
  };
  REQUIRE(all_up(1));
  Load load(client);

  std::optional<Client> other;
  if (c.held) {
    // Another client's connection, silent in its handshake for as long as the rollout takes.
    router->HoldNew(true);
    other.emplace(*Client::Create(client_settings));
    other->Call(PENSTOCK_METHOD(v1::Echo, Unary), EchoRequest(), {}, [](const CallResult&, EchoResponse&) {});
    REQUIRE(router->WaitUntil([](const auto& stats) { return stats.held == 1; }));
    router->HoldNew(false);
  }

  if (c.cause == Cause::kAge) {
    REQUIRE(all_up(3));
  } else {
    const int moves = c.cause == Cause::kTwoPods ? 2 : c.cause == Cause::kThreePods ? 3 : 1;
    for (int move = 1; move <= moves; ++move) {
      const std::uint16_t next = start_pod();
      router->SetTargets({next});
      if (c.cause == Cause::kKill) {
        processes.front().Kill();
      } else {
        Pod& old = pods[pods.size() - 2];
        const int before = old.echo.streams.opened;
        old.server->Shutdown();
        CHECK(old.server->Wait() == 0);
        CHECK(old.echo.streams.opened == before);  // None landed on it.
      }
      REQUIRE(all_up(move + 1));
    }
  }

  load.Stop();
  CHECK(client.circuit_state() == CircuitState::kClosed);
  CHECK(client.circuit_totals().entered_open == 0);
  CHECK(load.rejected == 0);
  CHECK(load.calls > 0);
  if (c.cause != Cause::kKill) {
    // By its age a connection may refuse a call that was under way to it, which is retried.
    if (c.cause != Cause::kAge) CHECK(client.circuit_totals().failures == 0);
    CHECK_MESSAGE(load.failed == 0, load.failure());
  }
  Measured measured{.calls = load.calls};
  for (const auto& stream : streams) {
    measured.longest_gap = std::max(measured.longest_gap, stream->longest_gap());
    stream->Cancel();
  }
  for (const auto& stream : streams) {
    CHECK(Eventually([&] { return stream->ended(); }));
    CHECK(stream->odd_end() == "");
  }
  CHECK(client.CloseAndWait(steady_clock::now() + 30s));
  if (other) CHECK(other->CloseAndWait(steady_clock::now() + 30s));
  return measured;
}

bool Full() { return std::getenv("PENSTOCK_FULL") != nullptr; }

void RunAll(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Measured measured = Run(c);
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(measured.longest_gap).count();
    MESSAGE(Text(c) << ": longest gap " << milliseconds << " ms, " << measured.calls << " calls");
    // A second; a loaded machine with sanitizers gets more.
    CHECK(measured.longest_gap < (Full() ? 1s : 10s));
  }
}

}  // namespace

TEST_CASE("S7: any number of streams of any kind on pods that are replaced leaves the breaker closed, and calls are answered") {
  if (Full()) return;
  // Each value of each axis beside most values of the others.
  RunAll({
      {1, Kind::kDown, Cause::kShutdown, false, false, Handler::kSends},
      {3, Kind::kBidi, Cause::kTwoPods, true, false, Handler::kSends},
      {5, Kind::kUp, Cause::kShutdown, false, false, Handler::kFails},
      {5, Kind::kDown, Cause::kKill, true, false, Handler::kFails},
      {8, Kind::kBidi, Cause::kKill, false, false, Handler::kFails},
      {8, Kind::kDown, Cause::kAge, false, false, Handler::kSends},
      {64, Kind::kUp, Cause::kAge, true, false, Handler::kFails},
      {64, Kind::kBidi, Cause::kShutdown, false, true, Handler::kFails},
      {64, Kind::kDown, Cause::kThreePods, false, false, Handler::kFails},
      {64, Kind::kUp, Cause::kKill, false, false, Handler::kSends},
      {1000, Kind::kDown, Cause::kShutdown, false, false, Handler::kSends},
  });
}

TEST_CASE("S7: every combination") {
  if (!Full()) return;
  for (const Cause cause : {Cause::kShutdown, Cause::kTwoPods, Cause::kThreePods, Cause::kAge, Cause::kKill}) {
    for (const int streams : {1, 3, 5, 8, 64, 1000}) {
      for (const Kind kind : {Kind::kDown, Kind::kBidi, Kind::kUp}) {
        for (const bool tls : {false, true}) {
          for (const bool held : {false, true}) {
            for (const Handler handler : {Handler::kSends, Handler::kFails}) RunAll({{streams, kind, cause, tls, held, handler}});
          }
        }
      }
    }
  }
}

TEST_CASE("helper: a pod" * doctest::skip()) {
  const char* handler = std::getenv("POD_HANDLER");
  REQUIRE(handler != nullptr);
  ServerSettings settings = LocalSettings();
  if (const char* certificate = std::getenv("POD_CERTIFICATE")) {
    settings.plaintext = false;
    settings.tls = Tls{.certificate = certificate, .key = std::getenv("POD_KEY")};
  }
  Pod pod(settings, static_cast<Handler>(std::atoi(handler)));
  const std::uint16_t port = pod.port();
  REQUIRE(write(PodProcess::kPortDescriptor, &port, sizeof port) == sizeof port);
  for (;;) pause();
}

}  // namespace penstock::test
