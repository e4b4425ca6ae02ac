#include "support/echo_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::test {

namespace {

std::chrono::system_clock::time_point In(int milliseconds) {
  return std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds);
}

grpc::Status StatusOf(const EchoRequest& request) {
  return {static_cast<grpc::StatusCode>(request.code()), request.message()};
}

void AddTrailers(const EchoRequest& request, grpc::CallbackServerContext& context) {
  for (const auto& [name, value] : request.trailers()) context.AddTrailingMetadata(name, value);
}

void Fill(const EchoRequest& request, const grpc::CallbackServerContext& context, const EchoOptions& options,
          int sequence, EchoResponse& response) {
  response.set_text(request.text());
  response.set_pod(options.pod);
  response.set_sequence(sequence);
  response.mutable_payload()->assign(static_cast<std::size_t>(std::max(request.reply_bytes(), 0)), 'x');
  const auto deadline = context.deadline();
  const bool endless = deadline == std::chrono::system_clock::time_point::max();
  response.set_remaining_ms(endless ? -1
                                    : std::chrono::duration_cast<std::chrono::milliseconds>(
                                          deadline - std::chrono::system_clock::now())
                                          .count());
}

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(EchoService& service, grpc::CallbackServerContext& context, const EchoRequest& request,
            EchoResponse& response)
      : service_(service), context_(context), request_(request), response_(response) {
    // An answer without a wait needs no alarm; -1 is ended by OnCancel alone.
    if (request.delay_ms() == 0) Answer();
    if (request.delay_ms() <= 0) return;
    alarm_.Set(In(request.delay_ms()), [this](bool fired) { fired ? Answer() : End(grpc::Status::CANCELLED); });
  }

  void OnCancel() override {
    service_.Cancelled();
    request_.delay_ms() < 0 ? End(grpc::Status::CANCELLED) : alarm_.Cancel();
  }

  void OnDone() override {
    service_.Ended(nullptr);
    delete this;
  }

 private:
  void Answer() {
    Fill(request_, context_, service_.options(), 0, response_);
    AddTrailers(request_, context_);
    End(StatusOf(request_));
  }

  void End(const grpc::Status& status) {
    if (!ended_.exchange(true)) Finish(status);
  }

  EchoService& service_;
  grpc::CallbackServerContext& context_;
  const EchoRequest& request_;
  EchoResponse& response_;
  grpc::Alarm alarm_;
  std::atomic<bool> ended_{false};
};

}  // namespace

// What the three kinds of streams share: one end, whoever asks for it, and nothing started after it.
class EchoStream {
 public:
  EchoStream(EchoService& service, grpc::CallbackServerContext& context) : service_(service), context_(context) {}

  void End(const grpc::Status& status) { EndWith(status, [] {}); }

 protected:
  virtual ~EchoStream() = default;

  virtual void FinishWith(const grpc::Status& status) = 0;
  virtual void Delete() = 0;

  // As a request asks for it: its code, message and trailers.
  void EndAsAsked(const EchoRequest& request) {
    EndWith(StatusOf(request), [&] { AddTrailers(request, context_); });
  }

  // What needs the call: its context, its response, a new operation. Not after the end, since the call may be gone by then.
  template <class Use>
  void IfOpen(const Use& use) {
    std::lock_guard lock(mutex_);
    if (!ended_) use();
  }

  template <class Then>
  void After(int milliseconds, Then then) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ++holds_;
    // A new one each time, since the one before may be what calls this.
    alarm_.emplace().Set(In(std::max(milliseconds, 0)), [this, then](bool fired) {
      if (fired) then();
      LetGo();
    });
  }

  void WasCancelled() {
    service_.Cancelled();
    End(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
  }

  void WasDone() {
    service_.Ended(this);
    LetGo();
  }

  EchoService& service_;
  grpc::CallbackServerContext& context_;

 private:
  template <class Before>
  void EndWith(const grpc::Status& status, const Before& before) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    before();
    FinishWith(status);
    // The alarm's function finds the end and does nothing; it holds the stream alive until then.
    if (alarm_.has_value()) alarm_->Cancel();
  }

  void LetGo() {
    {
      std::lock_guard lock(mutex_);
      if (--holds_ != 0) return;
    }
    Delete();
  }

  std::mutex mutex_;
  bool ended_ = false;
  int holds_ = 1;  // the call, and an alarm that is set
  std::optional<grpc::Alarm> alarm_;
};

namespace {

class DownCall final : public grpc::ServerWriteReactor<EchoResponse>, public EchoStream {
 public:
  DownCall(EchoService& service, grpc::CallbackServerContext& context, const EchoRequest& request)
      : EchoStream(service, context), request_(request) {
    service.Began(this, "Down", context);
    if (service.options().headers_at_once) IfOpen([&] { StartSendInitialMetadata(); });
    Next();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;  // OnCancel ends it
    request_.interval_ms() > 0 ? After(request_.interval_ms(), [this] { Next(); }) : Next();
  }
  void OnCancel() override { WasCancelled(); }
  void OnDone() override { WasDone(); }

 private:
  void FinishWith(const grpc::Status& status) override { Finish(status); }
  void Delete() override { delete this; }

  void Next() {
    if (request_.count() < 0 || sent_ < request_.count()) {
      return IfOpen([&] {
        Fill(request_, context_, service_.options(), sent_++, response_);
        StartWrite(&response_);
      });
    }
    if (request_.delay_ms() < 0) return;
    request_.delay_ms() > 0 ? After(request_.delay_ms(), [this] { EndAsAsked(request_); }) : EndAsAsked(request_);
  }

  const EchoRequest request_;
  EchoResponse response_;
  int sent_ = 0;
};

class UpCall final : public grpc::ServerReadReactor<EchoRequest>, public EchoStream {
 public:
  UpCall(EchoService& service, grpc::CallbackServerContext& context, EchoResponse& response)
      : EchoStream(service, context), response_(response) {
    service.Began(this, "Up", context);
    if (service.options().headers_at_once) IfOpen([&] { StartSendInitialMetadata(); });
    IfOpen([&] { StartRead(&request_); });
  }

  void OnReadDone(bool ok) override {
    if (!ok || request_.code() != 0) return EndAsAsked(request_);
    IfOpen([&] {
      Fill(request_, context_, service_.options(), ++received_, response_);
      StartRead(&request_);
    });
  }
  void OnCancel() override { WasCancelled(); }
  void OnDone() override { WasDone(); }

 private:
  void FinishWith(const grpc::Status& status) override { Finish(status); }
  void Delete() override { delete this; }

  EchoRequest request_;
  EchoResponse& response_;
  int received_ = 0;
};

class BidiCall final : public grpc::ServerBidiReactor<EchoRequest, EchoResponse>, public EchoStream {
 public:
  BidiCall(EchoService& service, grpc::CallbackServerContext& context) : EchoStream(service, context) {
    service.Began(this, "Bidi", context);
    if (service.options().headers_at_once) IfOpen([&] { StartSendInitialMetadata(); });
    if (service.options().bidi_sends_first || context.client_metadata().count("echo-send-first") != 0) {
      Reply();
    } else {
      IfOpen([&] { StartRead(&request_); });
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (request_.code() != 0) return EndAsAsked(request_);
    replies_ = request_.count() == 0 ? 1 : request_.count();
    request_.delay_ms() > 0 ? After(request_.delay_ms(), [this] { Reply(); }) : Reply();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;  // OnCancel ends it
    if (replies_ > 0) --replies_;
    if (replies_ == 0) return IfOpen([&] { StartRead(&request_); });
    request_.interval_ms() > 0 ? After(request_.interval_ms(), [this] { Reply(); }) : Reply();
  }
  void OnCancel() override { WasCancelled(); }
  void OnDone() override { WasDone(); }

 private:
  void FinishWith(const grpc::Status& status) override { Finish(status); }
  void Delete() override { delete this; }

  void Reply() {
    IfOpen([&] {
      Fill(request_, context_, service_.options(), sent_++, response_);
      StartWrite(&response_);
    });
  }

  EchoRequest request_;
  EchoResponse response_;
  int replies_ = 0;  // that are still to be sent for this request; below zero without end
  int sent_ = 0;
};

}  // namespace

EchoCounts EchoService::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

bool EchoService::WaitUntil(const std::function<bool(const EchoCounts&)>& predicate,
                            std::chrono::nanoseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return predicate(counts_); });
}

std::size_t EchoService::EndStreams(const grpc::Status& status, bool later_ones_too) {
  std::lock_guard lock(mutex_);
  if (later_ones_too) {
    end_later_ones_ = true;
    end_status_ = status;
  }
  // Under the lock, so that none is deleted meanwhile: a stream leaves the set before it deletes itself.
  for (EchoStream* stream : streams_) stream->End(status);
  return streams_.size();
}

grpc::ServerUnaryReactor* EchoService::Unary(grpc::CallbackServerContext* context, const EchoRequest* request,
                                             EchoResponse* response) {
  Began(nullptr, "Unary", *context);
  return new UnaryCall(*this, *context, *request, *response);
}

grpc::ServerUnaryReactor* EchoService::Repeatable(grpc::CallbackServerContext* context, const EchoRequest* request,
                                                  EchoResponse* response) {
  Began(nullptr, "Repeatable", *context);
  return new UnaryCall(*this, *context, *request, *response);
}

grpc::ServerUnaryReactor* EchoService::Idempotent(grpc::CallbackServerContext* context, const EchoRequest* request,
                                                  EchoResponse* response) {
  Began(nullptr, "Idempotent", *context);
  return new UnaryCall(*this, *context, *request, *response);
}

grpc::ServerUnaryReactor* EchoService::OnceOnly(grpc::CallbackServerContext* context, const EchoRequest* request,
                                                EchoResponse* response) {
  Began(nullptr, "OnceOnly", *context);
  return new UnaryCall(*this, *context, *request, *response);
}

grpc::ServerWriteReactor<EchoResponse>* EchoService::Down(grpc::CallbackServerContext* context,
                                                          const EchoRequest* request) {
  return new DownCall(*this, *context, *request);
}

grpc::ServerReadReactor<EchoRequest>* EchoService::Up(grpc::CallbackServerContext* context, EchoResponse* response) {
  return new UpCall(*this, *context, *response);
}

grpc::ServerBidiReactor<EchoRequest, EchoResponse>* EchoService::Bidi(grpc::CallbackServerContext* context) {
  return new BidiCall(*this, *context);
}

void EchoService::Began(EchoStream* stream, const char* method, const grpc::CallbackServerContext& context) {
  if (options_.on_call) {
    EchoCall call{.method = method, .metadata = {}, .deadline = context.deadline()};
    for (const auto& [name, value] : context.client_metadata()) {
      call.metadata.emplace(std::string(name.data(), name.size()), std::string(value.data(), value.size()));
    }
    options_.on_call(call);
  }
  std::lock_guard lock(mutex_);
  ++counts_.calls[method];
  if (stream == nullptr) {
    ++counts_.unary;
    ++counts_.open_unary;
  } else {
    ++counts_.streams;
    ++counts_.open_streams;
    streams_.insert(stream);
    if (end_later_ones_) stream->End(end_status_);
  }
  changed_.notify_all();
}

void EchoService::Cancelled() {
  std::lock_guard lock(mutex_);
  ++counts_.cancelled;
  changed_.notify_all();
}

void EchoService::Ended(EchoStream* stream) {
  std::lock_guard lock(mutex_);
  if (stream == nullptr) {
    --counts_.open_unary;
  } else {
    --counts_.open_streams;
    streams_.erase(stream);
  }
  changed_.notify_all();
}

EchoServer::EchoServer(EchoServerOptions options) : echo_(std::move(options.echo)) {
  grpc::ServerBuilder builder;
  // A second server on the port would start silently and take half of its connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(options.address, options.credentials, &port_);
  builder.RegisterService(&echo_);
  if (options.configure) options.configure(builder);
  server_ = builder.BuildAndStart();
  if (server_ != nullptr && port_ != 0) return;
  std::fprintf(stderr, "echo: cannot listen on %s\n", options.address.c_str());
  std::abort();
}

EchoServer::~EchoServer() { Shutdown(); }

void EchoServer::Shutdown(std::chrono::milliseconds grace) {
  server_->Shutdown(std::chrono::system_clock::now() + grace);
}

}  // namespace penstock::test
