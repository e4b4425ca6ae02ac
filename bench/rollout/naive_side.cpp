// The same pods and the same caller as they are commonly written: a server that finishes its streams and then shuts down,
// and a caller with a breaker for which an ended stream is a failure like any other.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/core/circuit_breaker.h"
#include "side.h"

namespace rollout {
namespace {

using namespace std::chrono_literals;
using ledger::v1::Account;
using ledger::v1::GetAccountRequest;
using ledger::v1::Ledger;
using ledger::v1::TransferRequest;
using ledger::v1::TransferResponse;
using ledger::v1::WatchAccountRequest;

class NaiveService final : public Ledger::CallbackService {
 public:
  NaiveService(Store& store, Figures& figures) : store_(store), figures_(figures) {}

  // Ends every stream that is open now.
  void FinishStreams() {
    ending_ = true;
    std::lock_guard lock(mutex_);
    for (AccountWatch* watch : open_) watch->End();
  }

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
                                       Account* response) override {
    *response = store_.Get(request->id());
    return Finished(context);
  }
  grpc::ServerUnaryReactor* Transfer(grpc::CallbackServerContext* context, const TransferRequest* request,
                                     TransferResponse* response) override {
    store_.Transfer(*request, *response);
    return Finished(context);
  }
  grpc::ServerWriteReactor<Account>* WatchAccount(grpc::CallbackServerContext*, const WatchAccountRequest* request) override {
    if (ending_) figures_.landed_on_old.Add();
    return new AccountWatch(*this, *request);
  }

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context) {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  class AccountWatch final : public grpc::ServerWriteReactor<Account>, private Watcher {
   public:
    AccountWatch(NaiveService& service, const WatchAccountRequest& request) : service_(service), id_(request.id()) {
      {
        std::lock_guard lock(service_.mutex_);
        service_.open_.insert(this);
      }
      service_.store_.Watch(id_, request.after_version(), *this);
    }
    void End() {
      std::lock_guard lock(mutex_);
      FinishLocked(grpc::Status(grpc::StatusCode::UNAVAILABLE, "server is shutting down"));
    }

   private:
    void Changed(const Account& account) override {
      std::lock_guard lock(mutex_);
      waiting_ = account;
      SendWaiting();
    }
    void OnWriteDone(bool ok) override {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (ok) SendWaiting();
    }
    void OnCancel() override {
      std::lock_guard lock(mutex_);
      FinishLocked(grpc::Status::CANCELLED);
    }
    void OnDone() override {
      service_.store_.Unwatch(id_, *this);
      {
        std::lock_guard lock(service_.mutex_);
        service_.open_.erase(this);
      }
      { std::lock_guard lock(mutex_); }  // Whoever finished it has let go.
      delete this;
    }
    void SendWaiting() {
      if (writing_ || finished_ || waiting_.version() == 0) return;
      sent_.Swap(&waiting_);
      waiting_.Clear();
      writing_ = true;
      StartWrite(&sent_);
    }
    void FinishLocked(const grpc::Status& status) {
      if (!finished_) Finish(status);
      finished_ = true;
    }

    NaiveService& service_;
    const std::string id_;
    std::mutex mutex_;
    Account waiting_;
    Account sent_;
    bool writing_ = false;
    bool finished_ = false;
  };

  Store& store_;
  Figures& figures_;
  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::set<AccountWatch*> open_;
};

class NaivePod final : public penstock::testing::Pod {
 public:
  NaivePod(Store& store, Figures& figures) : service_(store, figures) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~NaivePod() override {
    Shutdown();
    Wait(30s);
  }

  bool ok() const { return server_ != nullptr; }
  std::uint16_t port() const override { return static_cast<std::uint16_t>(port_); }

  // First the streams, so that nothing holds the shutdown; then the shutdown, with five seconds for the rest.
  void Shutdown() override {
    if (server_ == nullptr || leaving_.joinable()) return;
    leaving_ = std::thread([this] {
      std::this_thread::sleep_for(500ms);  // The drain, as long as the other side's.
      service_.FinishStreams();
      server_->Shutdown(std::chrono::system_clock::now() + 5s);
    });
  }
  int Wait(penstock::Duration) override {
    if (leaving_.joinable()) leaving_.join();
    return 0;
  }
  void Kill() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }
  bool Freeze() override { return false; }
  bool Thaw() override { return false; }

 private:
  NaiveService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::thread leaving_;
};

class NaiveCaller final : public Caller {
 public:
  NaiveCaller(const std::string& address, bool breaker, Figures& figures)
      : figures_(figures),
        breaker_(MakeBreaker(breaker, figures)),
        stub_(Ledger::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}
  ~NaiveCaller() override { Stop(); }

  void Watch(int streams) override {
    for (int i = 0; i < streams; ++i) watches_.emplace_back(*this, Store::IdOf(i)).Open();
  }

  void Call(std::uint64_t number) override {
    auto admission = breaker_->Acquire();
    if (!admission.admitted()) {
      figures_.unary_calls.Add();
      figures_.unary_rejected.Add();
      return;
    }
    Begin();
    auto* call = new OneCall{.ticket = admission.TakeTicket()};
    call->context.set_deadline(std::chrono::system_clock::now() + 10s);
    const auto done = [this, call](const grpc::Status& status) {
      const bool failed = status.error_code() == grpc::StatusCode::UNAVAILABLE;
      call->ticket.Settle(failed ? penstock::Outcome::kFailure : penstock::Outcome::kSuccess);
      figures_.unary_calls.Add();
      figures_.Answered(std::chrono::steady_clock::now() - call->began);
      if (!status.ok()) figures_.unary_failed.Add();
      delete call;
      End();
    };
    if (number % 10 != 0) {
      call->get.set_id(Store::IdOf(static_cast<int>(number)));
      stub_->async()->GetAccount(&call->context, &call->get, &call->account, done);
    } else {
      call->transfer.set_idempotency_key(std::to_string(number));
      call->transfer.set_from(Store::IdOf(static_cast<int>(number / 10)));
      call->transfer.set_to(Store::IdOf(static_cast<int>(number / 10 + 1)));
      call->transfer.set_amount(1);
      stub_->async()->Transfer(&call->context, &call->transfer, &call->transferred, done);
    }
  }

  const char* breaker_state() const override {
    switch (breaker_->state()) {
      case penstock::CircuitState::kClosed:
        return "closed";
      case penstock::CircuitState::kOpen:
        return "open";
      case penstock::CircuitState::kHalfOpen:
        return "half-open";
    }
    return "";
  }

  void Stop() override {
    stopping_ = true;
    for (OneWatch& watch : watches_) watch.Cancel();
    std::unique_lock lock(mutex_);
    idle_.wait_for(lock, 15s, [&] { return running_ == 0; });
  }

 private:
  static std::unique_ptr<penstock::CircuitBreaker> MakeBreaker(bool on, Figures& figures) {
    penstock::CircuitBreakerSettings settings;
    settings.observer = [&figures](const penstock::CircuitTransition& change) {
      if (change.to == penstock::CircuitState::kOpen) figures.breaker_opened.Add();
    };
    if (!on) settings.trip = [](const penstock::Counts&) { return false; };
    return std::move(*penstock::CircuitBreaker::Create(std::move(settings)));
  }

  struct OneCall {
    penstock::CircuitTicket ticket;
    grpc::ClientContext context{};
    GetAccountRequest get{};
    Account account{};
    TransferRequest transfer{};
    TransferResponse transferred{};
    std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  };

  // Opens again as soon as it ends; when the breaker lets it not, it has lost its stream.
  class OneWatch final : private grpc::ClientReadReactor<Account> {
   public:
    OneWatch(NaiveCaller& caller, const std::string& id) : caller_(caller) { request_.set_id(id); }

    void Open() {
      auto admission = caller_.breaker_->Acquire();
      if (!admission.admitted()) {
        caller_.figures_.streams_lost.Add();
        return;
      }
      caller_.Begin();
      ticket_ = admission.TakeTicket();
      {
        std::lock_guard lock(mutex_);
        context_ = std::make_unique<grpc::ClientContext>();
      }
      opened_ = false;
      caller_.stub_->async()->WatchAccount(context_.get(), &request_, this);
      StartRead(&account_);
      StartCall();
    }
    void Cancel() {
      std::lock_guard lock(mutex_);
      if (context_ != nullptr) context_->TryCancel();
    }

   private:
    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (!opened_) {
        opened_ = true;
        caller_.figures_.streams_opened.Add();
        caller_.figures_.streams_open.Add();
      }
      request_.set_after_version(0);
      StartRead(&account_);
    }
    void OnDone(const grpc::Status& status) override {
      if (opened_) caller_.figures_.streams_open.Add(-1);
      if (caller_.stopping_) {
        ticket_.Settle(penstock::Outcome::kIgnored);
      } else {
        ticket_.Settle(status.ok() ? penstock::Outcome::kSuccess : penstock::Outcome::kFailure);
        Open();
      }
      caller_.End();
    }

    NaiveCaller& caller_;
    WatchAccountRequest request_;
    Account account_;
    bool opened_ = false;
    penstock::CircuitTicket ticket_;
    std::mutex mutex_;
    std::unique_ptr<grpc::ClientContext> context_;
  };

  void Begin() {
    std::lock_guard lock(mutex_);
    ++running_;
  }
  void End() {
    std::lock_guard lock(mutex_);
    if (--running_ == 0) idle_.notify_all();
  }

  Figures& figures_;
  std::unique_ptr<penstock::CircuitBreaker> breaker_;
  std::unique_ptr<Ledger::Stub> stub_;
  std::atomic<bool> stopping_{false};
  std::deque<OneWatch> watches_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
};

}  // namespace

penstock::Result<std::unique_ptr<penstock::testing::Pod>> MakeNaivePod(Store& store, Figures& figures) {
  auto pod = std::make_unique<NaivePod>(store, figures);
  if (!pod->ok()) return penstock::Error("the naive pod did not start");
  return penstock::Result<std::unique_ptr<penstock::testing::Pod>>(std::move(pod));
}

std::unique_ptr<Caller> MakeNaiveCaller(const std::string& address, bool breaker, Figures& figures) {
  return std::make_unique<NaiveCaller>(address, breaker, figures);
}

}  // namespace rollout
