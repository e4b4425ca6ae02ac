// The wrapper that a team writes: a breaker of a mutex and a ring, a token bucket, and an object a call that is allocated
// anew, with a deadline.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <vector>

#include "penstock/test/v1/echo.grpc.pb.h"
#include "variant.h"

namespace load {
namespace {

using penstock::test::v1::Echo;
using penstock::test::v1::EchoRequest;
using penstock::test::v1::EchoResponse;

class TextbookBreaker {
 public:
  bool Admit() {
    std::lock_guard lock(mutex_);
    return !open_ || Clock::now() >= open_until_;
  }
  void Record(bool failed) {
    std::lock_guard lock(mutex_);
    failures_ += static_cast<int>(failed) - static_cast<int>(ring_[next_]);
    ring_[next_] = failed;
    next_ = (next_ + 1) % ring_.size();
    count_ = std::min(count_ + 1, ring_.size());
    in_a_row_ = failed ? in_a_row_ + 1 : 0;
    open_ = in_a_row_ >= 5 || (count_ >= 20 && failures_ * 2 >= static_cast<int>(count_));
    if (open_) open_until_ = Clock::now() + std::chrono::seconds(10);
  }

 private:
  std::mutex mutex_;
  std::vector<char> ring_ = std::vector<char>(100, 0);
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  int failures_ = 0;
  int in_a_row_ = 0;
  bool open_ = false;
  Clock::time_point open_until_;
};

class TextbookBudget {
 public:
  bool Take() {
    std::lock_guard lock(mutex_);
    tokens_ = std::max(0.0, tokens_ - 1);
    return tokens_ > 50;
  }
  void Give() {
    std::lock_guard lock(mutex_);
    tokens_ = std::min(100.0, tokens_ + 0.1);
  }

 private:
  std::mutex mutex_;
  double tokens_ = 100;
};

class TextbookClient {
 public:
  using Completion = std::function<void(const grpc::Status&, const EchoResponse&)>;

  explicit TextbookClient(std::shared_ptr<grpc::Channel> channel) : stub_(Echo::NewStub(channel)) {}

  void Unary(EchoRequest request, Completion completion) {
    Attempt(std::make_shared<EchoRequest>(std::move(request)), Clock::now() + std::chrono::seconds(10), 1,
            std::move(completion));
  }

 private:
  struct State {
    grpc::ClientContext context;
    std::shared_ptr<EchoRequest> request;
    EchoResponse response;
    Completion completion;
  };

  void Attempt(std::shared_ptr<EchoRequest> request, Clock::time_point deadline, int attempt, Completion completion) {
    if (!breaker_.Admit()) return completion(grpc::Status(grpc::StatusCode::UNAVAILABLE, "circuit open"), {});
    auto state = std::make_shared<State>();
    state->request = std::move(request);
    state->completion = std::move(completion);
    state->context.set_deadline(std::chrono::system_clock::now() + (deadline - Clock::now()));
    stub_->async()->Unary(&state->context, state->request.get(), &state->response,
                          [this, state, deadline, attempt](const grpc::Status& status) {
                            breaker_.Record(status.error_code() == grpc::StatusCode::UNAVAILABLE);
                            if (status.ok()) {
                              budget_.Give();
                            } else if (attempt < 3 && budget_.Take()) {
                              return Attempt(state->request, deadline, attempt + 1, std::move(state->completion));
                            }
                            state->completion(status, state->response);
                          });
  }

  std::unique_ptr<Echo::Stub> stub_;
  TextbookBreaker breaker_;
  TextbookBudget budget_;
};

class TextbookCall {
 public:
  TextbookCall(TextbookClient& client, Slot& slot, const EchoRequest& request)
      : client_(client), slot_(slot), request_(request) {}

  void Call() {
    client_.Unary(request_, [this](const grpc::Status& status, const EchoResponse& response) {
      if (slot_.EndAndContinue(status.ok() && response.text().size() == request_.text().size())) Call();
    });
  }

 private:
  TextbookClient& client_;
  Slot& slot_;
  const EchoRequest& request_;
};

class Textbook final : public Variant {
 public:
  explicit Textbook(const VariantOptions& options)
      : client_(grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials())) {
    request_.set_text(std::string(static_cast<std::size_t>(options.payload), 'x'));
  }

  void Run(Meter& meter, std::deque<Slot>& slots) override {
    std::deque<TextbookCall> calls;
    for (Slot& slot : slots) calls.emplace_back(client_, slot, request_);
    RunCallers(calls, meter, slots);
  }

 private:
  TextbookClient client_;
  EchoRequest request_;
};

}  // namespace

std::vector<VariantEntry> TextbookVariants() {
  return {{Kind::kUnary, "textbook wrapper", "mutex breaker, token bucket, an object a call, a deadline",
           [](const VariantOptions& options) -> std::unique_ptr<Variant> { return std::make_unique<Textbook>(options); }}};
}

}  // namespace load
