// The lab's peer on plain grpc++: a callback server as gRPC's guide has it, and a client on the generated stub.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "lab/peers/cpp/driver.h"
#include "lab/peers/cpp/options.h"
#include "lab/peers/cpp/work.h"

namespace penstock::lab {
namespace {

using std::chrono::milliseconds;

class Stubs {
 public:
  std::shared_ptr<v1::Lab::Stub> For(const v1::Channel& channel) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<v1::Lab::Stub>& stub = stubs_[channel.name()];
    if (stub == nullptr || channel.name().empty()) stub = v1::Lab::NewStub(Make(channel));
    return stub;
  }

 private:
  static std::shared_ptr<grpc::Channel> Make(const v1::Channel& channel) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (channel.keepalive_ms() > 0) {
      arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, channel.keepalive_ms());
      arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    }
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, channel.keepalive_without_calls() ? 1 : 0);
    if (channel.max_receive_bytes() > 0) arguments.SetMaxReceiveMessageSize(channel.max_receive_bytes());
    if (channel.no_retries()) arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    if (channel.round_robin()) arguments.SetLoadBalancingPolicyName("round_robin");
    if (channel.has_retry()) {
      std::string codes;
      for (const std::string& code : channel.retry().codes()) codes += (codes.empty() ? "\"" : ",\"") + code + "\"";
      const std::string backoff = std::to_string(channel.retry().initial_backoff_ms() / 1000.0) + "s";
      arguments.SetServiceConfigJSON(
          R"({"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":)" + std::to_string(channel.retry().max_attempts()) +
          R"(,"initialBackoff":")" + backoff + R"(","maxBackoff":")" + backoff +
          R"(","backoffMultiplier":1,"retryableStatusCodes":[)" + codes + "]}}]}");
    }
    std::string target = channel.addresses_size() > 1 ? "ipv4:" : "";
    for (const std::string& address : channel.addresses()) target += (target.empty() || target == "ipv4:" ? "" : ",") + address;
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<v1::Lab::Stub>> stubs_;
};

// Deletes itself when its thread and gRPC are both done with it.
class Watcher final : public grpc::ServerWriteReactor<v1::Answer> {
 public:
  Watcher(Memory& memory, grpc::CallbackServerContext* context, const v1::Work& work, int before, const std::string& server)
      : memory_(memory), context_(context), work_(work), end_(EndOf(work, before)) {
    message_.set_server(server);
    std::thread([this] { Send(); }).detach();
  }

 private:
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    bool writing = false;
    bool done = false;
    void Set(bool Progress::*flag, bool value) {
      std::lock_guard lock(mutex);
      this->*flag = value;
      changed.notify_all();
    }
    void WaitFor(bool Progress::*flag, bool value) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return this->*flag == value; });
    }
  };

  void Send() {
    const std::shared_ptr<Progress> progress = progress_;
    if (work_.headers_first()) {
      StartSendInitialMetadata();
      std::this_thread::sleep_for(milliseconds(work_.interval_ms()));
    }
    TakeSteps(memory_, work_, work_.messages(), [this] { return context_->IsCancelled(); }, [&](int i) {
      message_.set_number(i);
      progress->Set(&Progress::writing, true);
      StartWrite(&message_);
      progress->WaitFor(&Progress::writing, false);
      if (i + 1 < work_.messages()) std::this_thread::sleep_for(milliseconds(work_.interval_ms()));
    });
    Finish(end_);
    progress->WaitFor(&Progress::done, true);
    delete this;
  }
  void OnWriteDone(bool /*ok*/) override { progress_->Set(&Progress::writing, false); }
  void OnDone() override {
    const std::shared_ptr<Progress> progress = progress_;
    progress->Set(&Progress::done, true);
  }

  Memory& memory_;
  grpc::CallbackServerContext* const context_;
  const v1::Work work_;
  const grpc::Status end_;
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  v1::Answer message_;
};

class LabService final : public v1::Lab::CallbackService {
 public:
  LabService(Memory& memory, std::string name) : memory_(memory), name_(std::move(name)) {}

 private:
  grpc::ServerUnaryReactor* Do(grpc::CallbackServerContext* context, const v1::Work* work, v1::Answer* answer) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    if (!work->next().empty()) {
      std::thread([=, this] { reactor->Finish(Relay(*context, *work, *answer)); }).detach();
      return reactor;
    }
    const int before = Begin(memory_, *work, *context);
    if (work->fault() != v1::Work::NO_FAULT) throw std::runtime_error("a secret of the handler's");
    std::thread([=, this] {
      reactor->Finish(DoWork(memory_, *work, before, name_, [=] { return context->IsCancelled(); }, *answer));
    }).detach();
    return reactor;
  }

  grpc::Status Relay(const grpc::CallbackServerContext& context, const v1::Work& work, v1::Answer& answer) {
    v1::Channel channel;
    channel.set_name(work.next());
    channel.add_addresses(work.next());
    v1::Work rest = work;
    rest.clear_next();
    const std::unique_ptr<grpc::ClientContext> call =
        work.detached() ? std::make_unique<grpc::ClientContext>() : grpc::ClientContext::FromCallbackServerContext(context);
    return stubs_.For(channel)->Do(call.get(), rest, &answer);
  }

  grpc::ServerWriteReactor<v1::Answer>* Watch(grpc::CallbackServerContext* context, const v1::Work* work) override {
    return new Watcher(memory_, context, *work, Begin(memory_, *work, *context), name_);
  }

  Memory& memory_;
  const std::string name_;
  Stubs stubs_;
};

CallEnd Call(Stubs& stubs, const v1::Task& task) {
  const std::shared_ptr<v1::Lab::Stub> stub = stubs.For(task.channel());
  grpc::ClientContext context;
  if (task.deadline_ms() > 0) context.set_deadline(std::chrono::system_clock::now() + milliseconds(task.deadline_ms()));
  for (const auto& [key, value] : task.metadata()) context.AddMetadata(key, value);
  CallEnd end;
  v1::Answer answer;
  if (task.stream()) {
    const auto reader = stub->Watch(&context, task.work());
    while (reader->Read(&answer)) {
      end.server = answer.server();
      if (++end.messages == task.cancel_after()) context.TryCancel();
    }
    end.status = reader->Finish();
  } else {
    end.status = stub->Do(&context, task.work(), &answer);
    end.server = answer.server();
    end.messages = end.status.ok() ? 1 : 0;
  }
  return end;
}

int Main(const PeerOptions& options) {
  Memory memory;
  LabService service(memory, options.name);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  if (options.permit_ping_ms > 0) {
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, options.permit_ping_ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  }
  if (options.connection_age_ms > 0) builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.connection_age_ms);
  if (options.max_receive_bytes > 0) builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return std::fprintf(stderr, "the server did not start\n"), 1;
  Stubs stubs;
  DriverServer driver(memory, [&stubs](const v1::Task& task) { return Call(stubs, task); });
  Announce(port, driver.port());
  driver.Wait();
  return 0;
}

}  // namespace
}  // namespace penstock::lab

int main(int argc, char** argv) { return penstock::lab::Main(penstock::lab::PeerOptions::Parse(argc, argv)); }
