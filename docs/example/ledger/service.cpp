#include "ledger/service.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

namespace example::ledger {

namespace {

using penstock::Reply;
using penstock::ServerCall;

grpc::Status StatusOf(const StoreError& error) {
  switch (error.problem) {
    case StoreProblem::kNotFound: return {grpc::StatusCode::NOT_FOUND, error.text};
    case StoreProblem::kInsufficientFunds: return {grpc::StatusCode::FAILED_PRECONDITION, error.text};
    case StoreProblem::kTooMuch: return {grpc::StatusCode::OUT_OF_RANGE, error.text};
    case StoreProblem::kKeyReused: return {grpc::StatusCode::ALREADY_EXISTS, error.text};
    case StoreProblem::kDeadline: return {grpc::StatusCode::DEADLINE_EXCEEDED, error.text};
    case StoreProblem::kCancelled: return {grpc::StatusCode::CANCELLED, error.text};
    case StoreProblem::kUnavailable: return {grpc::StatusCode::UNAVAILABLE, error.text};
  }
  return {grpc::StatusCode::INTERNAL, "unknown problem of the store"};
}

// PostgreSQL takes a text up to its first NUL: for another account, or another transfer's key.
template <class... Texts>
bool HasNul(const Texts&... texts) {
  return ((texts.find('\0') != std::string::npos) || ...);
}

grpc::Status NulRefused() { return {grpc::StatusCode::INVALID_ARGUMENT, "a name with a NUL in it"}; }

void Fill(const AccountRecord& record, ::ledger::v1::Account& account) {
  account.set_id(record.id);
  account.set_balance(record.balance);
  account.set_version(record.version);
}

// The database gets what is left of the call's deadline.
Limits LimitsOf(grpc::CallbackServerContext* context) { return {.deadline = ServerCall::Of(context)->deadline(), .stop = {}}; }

// A stream has no deadline, but each of its questions has: a database that hangs must not keep a stream from ending.
Limits StreamLimits(const std::stop_source& cancelled) {
  return {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5), .stop = cancelled.get_token()};
}

// A stream whose question was not answered in time may be opened again.
grpc::Status StreamStatusOf(const StoreError& error) {
  if (error.problem == StoreProblem::kDeadline) return {grpc::StatusCode::UNAVAILABLE, error.text};
  return StatusOf(error);
}

}  // namespace

grpc::ServerUnaryReactor* LedgerService::GetAccount(grpc::CallbackServerContext* context, const ::ledger::v1::GetAccountRequest* request,
                                                    ::ledger::v1::Account* response) {
  return Handle(context, [&](Reply reply) {
    if (HasNul(request->id())) return reply.Finish(NulRefused());
    auto shared = std::make_shared<Reply>(std::move(reply));
    store_.Get(request->id(), LimitsOf(context), [shared, response](const StoreResult<AccountRecord>& result) {
      if (const auto* error = std::get_if<StoreError>(&result)) return shared->Finish(StatusOf(*error));
      Fill(std::get<AccountRecord>(result), *response);
      shared->Finish(grpc::Status::OK);
    });
  });
}

grpc::ServerUnaryReactor* LedgerService::Transfer(grpc::CallbackServerContext* context, const ::ledger::v1::TransferRequest* request,
                                                  ::ledger::v1::TransferResponse* response) {
  return Handle(context, [&](Reply reply) {
    if (request->idempotency_key().empty() || request->amount() <= 0 || request->from() == request->to()) {
      return reply.Finish({grpc::StatusCode::INVALID_ARGUMENT, "a transfer needs a key, an amount above 0, and two different accounts"});
    }
    if (HasNul(request->idempotency_key(), request->from(), request->to())) return reply.Finish(NulRefused());
    auto shared = std::make_shared<Reply>(std::move(reply));
    store_.Transfer({request->idempotency_key(), request->from(), request->to(), request->amount()}, LimitsOf(context),
                    [shared, response](const StoreResult<Transferred>& result) {
                      if (const auto* error = std::get_if<StoreError>(&result)) return shared->Finish(StatusOf(*error));
                      const auto& moved = std::get<Transferred>(result);
                      Fill(moved.from, *response->mutable_from());
                      Fill(moved.to, *response->mutable_to());
                      response->set_repeated(moved.repeated);
                      shared->Finish(grpc::Status::OK);
                    });
  });
}

namespace {

// Sends the account whenever its version has risen. It reads before it writes, one read and one write at a time, so that a
// slow client gets fewer, newer messages and nothing queues up.
class AccountWatcher final : public penstock::ServerWriteReactor<::ledger::v1::Account> {
 public:
  AccountWatcher(Store& store, const ::ledger::v1::WatchAccountRequest& request)
      : store_(store), id_(request.id()), sent_version_(request.after_version()) {
    if (HasNul(id_)) throw NulRefused();
    watch_ = store_.WatchChanges([this](const std::string& id) {
      if (id.empty() || id == id_) Look();
    });
    Look();
  }

 private:
  void Look() {
    penstock::CallHold hold = Hold();
    if (!hold) return;  // the stream is ending
    {
      std::lock_guard lock(mutex_);
      stale_ = true;
      if (busy_) return;
      busy_ = true;
      stale_ = false;
    }
    Read(std::move(hold));
  }

  void Read(penstock::CallHold hold) {
    auto shared = std::make_shared<penstock::CallHold>(std::move(hold));
    store_.Get(id_, StreamLimits(cancelled_), [this, shared](const StoreResult<AccountRecord>& result) {
      if (const auto* error = std::get_if<StoreError>(&result)) {
        if (error->problem != StoreProblem::kCancelled) Finish(StreamStatusOf(*error));  // else it is being finished
        return;
      }
      const auto& record = std::get<AccountRecord>(result);
      if (record.version <= sent_version_) return Continue();
      sent_version_ = record.version;
      Fill(record, message_);
      StartWrite(&message_);  // false when the stream is ending: then nothing follows
    });
  }

  // After a look that found nothing new, and after a write.
  void Continue() {
    penstock::CallHold hold = Hold();
    if (!hold) return;
    {
      std::lock_guard lock(mutex_);
      if (!stale_) {
        busy_ = false;
        return;
      }
      stale_ = false;
    }
    Read(std::move(hold));
  }

  void OnWriteDone(bool ok) override {
    if (ok) Continue();
  }
  // Its query is given up: one that waits at once, one that runs where the store can end it (store.h). The stream ends once the
  // query has: within the five seconds that it has at most.
  void OnCancelled() override { cancelled_.request_stop(); }
  void OnShutdown() override { cancelled_.request_stop(); }
  void OnDone() override { watch_.reset(); }  // waits for a call of Look() that is under way

  Store& store_;
  const std::string id_;
  std::stop_source cancelled_;
  std::int64_t sent_version_;      // of whoever is busy
  ::ledger::v1::Account message_;  // of whoever is busy
  std::mutex mutex_;
  bool busy_ = false;   // under mutex_: a read or a write is under way
  bool stale_ = false;  // under mutex_: something changed since the read began
  std::unique_ptr<Watch> watch_;
};

// Compares what a client believes with what the ledger knows, account by account.
class Reconciler final : public penstock::ServerBidiReactor<::ledger::v1::ReconcileRequest, ::ledger::v1::ReconcileResponse> {
 public:
  explicit Reconciler(Store& store) : store_(store) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    if (HasNul(request_.expected().id())) {
      Finish(NulRefused());
      return;
    }
    auto hold = std::make_shared<penstock::CallHold>(Hold());
    if (!*hold) return;  // the stream is ending
    store_.Get(request_.expected().id(), StreamLimits(cancelled_), [this, hold](const StoreResult<AccountRecord>& result) {
      response_.Clear();
      if (const auto* error = std::get_if<StoreError>(&result)) {
        if (error->problem == StoreProblem::kCancelled) return;  // it is being finished
        if (error->problem != StoreProblem::kNotFound) {
          Finish(StreamStatusOf(*error));
          return;
        }
      } else {
        const auto& record = std::get<AccountRecord>(result);
        Fill(record, *response_.mutable_actual());
        response_.set_equal(record.balance == request_.expected().balance() && record.version == request_.expected().version());
      }
      StartWrite(&response_);
    });
  }
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&request_);
  }
  void OnCancelled() override { cancelled_.request_stop(); }
  void OnShutdown() override { cancelled_.request_stop(); }

  Store& store_;
  std::stop_source cancelled_;
  ::ledger::v1::ReconcileRequest request_;
  ::ledger::v1::ReconcileResponse response_;
};

}  // namespace

grpc::ServerWriteReactor<::ledger::v1::Account>* LedgerService::WatchAccount(grpc::CallbackServerContext* context,
                                                                             const ::ledger::v1::WatchAccountRequest* request) {
  return Start<AccountWatcher>(context, store_, *request);
}

grpc::ServerBidiReactor<::ledger::v1::ReconcileRequest, ::ledger::v1::ReconcileResponse>* LedgerService::Reconcile(
    grpc::CallbackServerContext* context) {
  return Start<Reconciler>(context, store_);
}

}  // namespace example::ledger
