#include "lab/peers/cpp/driver.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace penstock::lab {

class DriverServer::Service final : public v1::Driver::Service {
 public:
  Service(const Memory& memory, std::function<CallEnd(const v1::Task&)> call) : memory_(memory), call_(std::move(call)) {}

  grpc::Status Run(grpc::ServerContext*, const v1::Task* told, v1::Outcome* outcome) override {
    v1::Task filled = *told;
    filled.mutable_work()->set_payload(std::string(static_cast<std::size_t>(told->request_bytes()), 'x'));
    const v1::Task* const task = &filled;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(task->duration_ms());
    const auto more = [&](int made) {
      return task->duration_ms() > 0 ? std::chrono::steady_clock::now() < until : made < std::max(1, task->calls());
    };
    for (int made = 0; more(made); ++made) {
      if (made > 0) std::this_thread::sleep_for(std::chrono::milliseconds(task->pause_ms()));
      Add(call_(*task), *outcome);
    }
    return grpc::Status::OK;
  }

  grpc::Status Count(grpc::ServerContext*, const v1::Key* key, v1::Tally* tally) override {
    *tally = memory_.Of(key->key());
    return grpc::Status::OK;
  }

 private:
  static void Add(const CallEnd& end, v1::Outcome& outcome) {
    outcome.set_code(end.status.error_code());
    outcome.set_message(end.status.error_message());
    outcome.set_reason(ReasonOf(end.status));
    outcome.set_messages(end.messages);
    outcome.set_attempts(outcome.attempts() + end.attempts);
    ++(*outcome.mutable_codes())[NameOf(end.status.error_code())];
    if (!end.server.empty()) ++(*outcome.mutable_servers())[end.server];
    const auto& failures = outcome.failures();
    if (!end.status.ok() && failures.size() < 10 &&
        std::find(failures.begin(), failures.end(), end.status.error_message()) == failures.end()) {
      outcome.add_failures(end.status.error_message());
    }
  }

  const Memory& memory_;
  const std::function<CallEnd(const v1::Task&)> call_;
};

DriverServer::DriverServer(const Memory& memory, std::function<CallEnd(const v1::Task&)> call)
    : service_(std::make_unique<Service>(memory, std::move(call))) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

DriverServer::~DriverServer() = default;

}  // namespace penstock::lab
