// The lab's peer on penstock: its server and its client.

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "lab/peers/cpp/driver.h"
#include "lab/peers/cpp/options.h"
#include "lab/peers/cpp/work.h"
#include "penstock/client/client.h"
#include "penstock/server/server.h"

namespace penstock::lab {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

class Watcher final : public ServerWriteReactor<v1::Answer> {
 public:
  Watcher(Memory& memory, const v1::Work& work, int before, std::string server)
      : memory_(memory), work_(work), end_(EndOf(work, before)) {
    // A status that is thrown here goes out without headers; from now on they are sent at once.
    if (!end_.ok() && work.messages() == 0 && !work.headers_first()) throw end_;
    message_.set_server(std::move(server));
    // The hold keeps the reactor alive for as long as the thread is at it.
    std::thread([this, hold = Hold()] { Send(); }).detach();
  }

 private:
  void Send() {
    if (work_.headers_first()) std::this_thread::sleep_for(milliseconds(work_.interval_ms()));
    const auto write = [this](int i) {
      std::unique_lock lock(mutex_);
      message_.set_number(i);
      writing_ = true;
      if (StartWrite(&message_)) written_.wait(lock, [this] { return !writing_; });
      lock.unlock();
      if (i + 1 < work_.messages()) std::this_thread::sleep_for(milliseconds(work_.interval_ms()));
    };
    if (TakeSteps(memory_, work_, work_.messages(), [this] { return context()->IsCancelled(); }, write)) Finish(end_);
  }
  void OnWriteDone(bool /*ok*/) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    written_.notify_all();
  }

  Memory& memory_;
  const v1::Work work_;
  const grpc::Status end_;
  std::mutex mutex_;
  std::condition_variable written_;
  bool writing_ = false;
  v1::Answer message_;
};

// Clients by the name of their channel, or by their address.
class Clients {
 public:
  std::shared_ptr<Client> For(const v1::Channel& channel) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Client>& client = clients_[channel.name()];
    if (client == nullptr || channel.name().empty()) client = Make(channel);
    return client;
  }

 private:
  static std::shared_ptr<Client> Make(const v1::Channel& channel) {
    ClientSettings settings{.plaintext = true, .timeout = 60s};
    if (channel.addresses_size() == 1) {
      settings.address = channel.addresses(0);
    } else {
      settings.addresses.assign(channel.addresses().begin(), channel.addresses().end());
      settings.authority = "lab";
    }
    if (channel.round_robin()) settings.connection.balancing = Balancing::kRoundRobin;
    settings.connection.keepalive_interval = milliseconds(channel.keepalive_ms());
    settings.connection.keepalive_without_calls = channel.keepalive_without_calls();
    settings.max_receive_bytes = static_cast<std::size_t>(channel.max_receive_bytes());
    if (channel.no_retries()) settings.max_attempts = 1;
    if (channel.no_breaker()) settings.breaker.trip = [](const Counts&) { return false; };
    if (channel.has_retry()) {
      settings.max_attempts = static_cast<std::uint32_t>(channel.retry().max_attempts());
      settings.backoff_base = milliseconds(channel.retry().initial_backoff_ms());
      settings.backoff_max = settings.backoff_base;
    }
    auto client = Client::Create(std::move(settings));
    if (!client.ok()) {
      std::fprintf(stderr, "%s\n", client.error().message().c_str());
      return nullptr;
    }
    return std::make_shared<Client>(std::move(*client));
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Client>> clients_;
};

class LabService final : public Service<v1::Lab> {
 public:
  LabService(Memory& memory, std::string name) : memory_(memory), name_(std::move(name)) {}

 private:
  grpc::ServerUnaryReactor* Do(grpc::CallbackServerContext* context, const v1::Work* work, v1::Answer* answer) override {
    if (!work->next().empty()) return Relay(context, work, answer);
    return HandleOn(pool_, context, [=, this] {
      const int before = Begin(memory_, *work, *context);
      // C++ has one plain error, the exception.
      if (work->fault() != v1::Work::NO_FAULT) throw std::runtime_error("a secret of the handler's");
      return DoWork(memory_, *work, before, name_, [=] { return context->IsCancelled(); }, *answer);
    });
  }

  grpc::ServerUnaryReactor* Relay(grpc::CallbackServerContext* context, const v1::Work* work, v1::Answer* answer) {
    return Handle(context, [&](Reply reply) {
      v1::Channel channel;
      channel.set_name(work->next());
      channel.add_addresses(work->next());
      channel.set_no_breaker(true);
      v1::Work rest = *work;
      rest.clear_next();
      CallOptions options{.parent = ServerCall::Of(context)->Scope(), .detached = work->detached()};
      if (work->detached()) options.timeout = 10s;
      clients_.For(channel)->Call(PENSTOCK_METHOD(v1::Lab, Do), std::move(rest), std::move(options),
                                  [reply = std::move(reply), answer](const CallResult& result, v1::Answer& response) mutable {
                                    *answer = std::move(response);
                                    reply.Finish(result.status);
                                  });
    });
  }

  grpc::ServerWriteReactor<v1::Answer>* Watch(grpc::CallbackServerContext* context, const v1::Work* work) override {
    const int before = Begin(memory_, *work, *context);
    return Start<Watcher>(context, memory_, *work, before, name_);
  }

  Memory& memory_;
  const std::string name_;
  Clients clients_;
  WorkPool pool_{{.threads = 64, .max_waiting = 4096}};
};

// Reads a stream to its end, or until it has read enough.
class Reader final : public ClientReadReactor<v1::Answer> {
 public:
  explicit Reader(int cancel_after) : cancel_after_(cancel_after) { (void)StartRead(&message_); }

  CallEnd Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return ended_; });
    return end_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    end_.server = message_.server();
    if (++end_.messages == cancel_after_) return Cancel();
    (void)StartRead(&message_);
  }
  void OnDone(const CallResult& result) override {
    std::lock_guard lock(mutex_);
    end_.status = result.status;
    end_.attempts = static_cast<int>(result.attempts);
    ended_ = true;
    done_.notify_all();
  }

  const int cancel_after_;
  v1::Answer message_;
  CallEnd end_;
  std::mutex mutex_;
  std::condition_variable done_;
  bool ended_ = false;
};

CallEnd Call(Clients& clients, const v1::Task& task) {
  const std::shared_ptr<Client> client = clients.For(task.channel());
  if (client == nullptr) return {.status = {grpc::StatusCode::INVALID_ARGUMENT, "penstock refuses these settings"}};
  CallOptions options{.metadata = {task.metadata().begin(), task.metadata().end()}};
  if (task.deadline_ms() > 0) options.deadline = std::chrono::steady_clock::now() + milliseconds(task.deadline_ms());
  if (task.stream()) {
    Reader reader(task.cancel_after());
    client->Open(PENSTOCK_METHOD(v1::Lab, Watch), task.work(), std::move(options), reader);
    return reader.Wait();
  }
  auto waited = client->CallAndWait(PENSTOCK_METHOD(v1::Lab, Do), task.work(), std::move(options));
  return {.status = waited.result.status, .server = waited.response.server(), .messages = waited.ok() ? 1 : 0,
          .attempts = static_cast<int>(waited.result.attempts)};
}

// The layers that V7 puts around a handler, as far as a program sees them.
class Metrics final : public ServerObserver {
 public:
  explicit Metrics(Memory& memory) : memory_(memory) {}
  std::unique_ptr<ServerCallObservation> OnStarted(ServerCall& /*call*/) override { return std::make_unique<Observation>(memory_); }

 private:
  struct Observation final : ServerCallObservation {
    explicit Observation(Memory& memory) : memory(memory) {}
    void OnEnded(const ServerCall& /*call*/, const ServerCallEnd& end) noexcept override { memory.Saw("metrics", end.code); }
    Memory& memory;
  };
  Memory& memory_;
};

int Main(const PeerOptions& options) {
  Memory memory;
  LabService service(memory, options.name);
  ServerSettings settings{.address = "127.0.0.1:0"};
  settings.plaintext = true;
  settings.drain = settings.grace = 0s;
  settings.handshake_window = 0s;
  if (options.permit_ping_ms > 0) settings.permitted_keepalive = milliseconds(options.permit_ping_ms);
  if (options.connection_age_ms > 0) settings.max_connection_age = milliseconds(options.connection_age_ms);
  if (options.max_receive_bytes > 0) settings.max_receive_bytes = static_cast<std::size_t>(options.max_receive_bytes);
  settings.observers = {std::make_shared<Metrics>(memory)};
  settings.access_log = [&memory](const AccessLogEntry& entry) { memory.Saw("log", entry.end.code); };
  if (!options.token.empty()) {
    settings.authenticator = BearerTokens([&options](std::string_view token) -> std::optional<Identity> {
      if (token != options.token) return std::nullopt;
      return Identity{.scheme = "bearer", .subject = "lab", .attributes = {}};
    });
  }
  auto server = Server::Create(std::move(settings), {&service});
  if (!server.ok()) return std::fprintf(stderr, "%s\n", server.error().message().c_str()), 1;
  Clients clients;
  DriverServer driver(memory, [&clients](const v1::Task& task) { return Call(clients, task); });
  Announce((*server)->port(), driver.port());
  return (*server)->Run();
}

}  // namespace
}  // namespace penstock::lab

int main(int argc, char** argv) { return penstock::lab::Main(penstock::lab::PeerOptions::Parse(argc, argv)); }
