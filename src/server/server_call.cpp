#include "penstock/server/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "penstock/server/detail/guard.h"
#include "runtime/inbound_deadline.h"
#include "runtime/log.h"
#include "runtime/metadata.h"
#include "runtime/pushback.h"
#include "runtime/status_code.h"
#include "runtime/status_text.h"
#include "runtime/thrown.h"
#include "server_core.h"

namespace penstock::inline v0 {

ServerCall* ServerCall::Of(grpc::CallbackServerContext* context) noexcept {
  if (context == nullptr || typeid(*context) != typeid(ServerCall)) return nullptr;
  return static_cast<ServerCall*>(context);
}

ServerCall::~ServerCall() = default;

std::string_view ServerCall::method() const noexcept {
  return method_ == nullptr ? std::string_view() : std::string_view(method_->path);
}

TimePoint ServerCall::deadline() const noexcept {
  return detail::InboundDeadline(raw_deadline(), core_.time().clock().Now()).value_or(TimePoint::max());
}

std::shared_ptr<CallScope> ServerCall::Scope() const {
  std::shared_ptr<CallScope> scope;
  bool ended = false;
  CallScope::Ending ending{};
  {
    std::lock_guard lock(mutex_);
    if (!scope_) scope_ = core_.MakeScope(*this);
    scope = scope_;
    ended = scope_ended_;
    ending = scope_ending_;
  }
  if (ended) {
    scope->End(ending);
  } else if (IsCancelled()) {
    scope->End(CallScope::Ending::kCancelled);
  }
  return scope;
}

bool ServerCall::AddTrailer(const std::string& key, const std::string& value) {
  if (!(key == detail::kPushbackKey || detail::LegalMetadataKey(key)) || !detail::LegalMetadataValue(key, value)) return false;
  const std::size_t bytes = detail::HeaderSize(key, value);
  std::lock_guard lock(mutex_);
  if (concluded_ || trailer_bytes_ + bytes > detail::kMostTrailers) return false;
  trailers_.emplace_back(key, value);
  trailer_bytes_ += bytes;
  return true;
}

namespace detail {

void EndScope(ServerCall* call, CallScope::Ending ending) noexcept {
  if (call == nullptr) return;
  std::shared_ptr<CallScope> scope;
  {
    std::lock_guard lock(call->mutex_);
    if (call->scope_ended_) return;
    call->scope_ended_ = true;
    call->scope_ending_ = ending;
    if (ending == CallScope::Ending::kCancelled) call->expired_ = call->core_.AtDeadline(*call);
    scope = call->scope_;
  }
  if (scope) scope->End(ending);
}

std::optional<grpc::Status> Admit(ServerCall* call) noexcept {
  if (call == nullptr) return std::nullopt;
  return call->core_.Admit(*call);
}

grpc::Status StatusOfException(ServerCall* call, const char* where) noexcept {
  std::string text;
  try {
    throw;
  } catch (const grpc::Status& status) {
    return status;
  } catch (...) {
    text = WhatWasThrown();
  }
  if (call == nullptr) {
    Log(LogSeverity::kError, "{} threw: {}", where, text);
    return {grpc::StatusCode::INTERNAL, "the handler failed"};
  }
  return call->core_.ExceptionStatus(*call, where, text.c_str());
}

grpc::Status Conclude(ServerCall* call, grpc::Status status) noexcept {
  status = NormalStatus(std::move(status));
  if (EncodedSize(status.error_message()) > kLongestStatusText) {
    status = grpc::Status(status.error_code(), CutStatusText(status.error_message()), status.error_details());
  }
  if (call == nullptr) return status;
  std::size_t trailers = 0;
  {
    std::lock_guard lock(call->mutex_);
    trailers = call->trailer_bytes_;
    // A reactor that finishes in its constructor and then throws is concluded twice.
    if (!std::exchange(call->concluded_, true)) {
      for (const auto& [key, value] : call->trailers_) call->AddTrailingMetadata(key, value);
    }
  }
  if (!status.error_details().empty() && trailers + HeaderSize(kDetailsKey, status.error_details()) > kMostTrailers) {
    Log(LogSeverity::kWarning, "{}: the status details ({} bytes) are dropped, since clients drop a connection whose trailers are too long",
        call->method(), status.error_details().size());
    status = grpc::Status(status.error_code(), status.error_message());
  }
  call->core_.Answered(*call, status.error_code());
  return status;
}

grpc::Status Overloaded(grpc::CallbackServerContext* context, const char* why) noexcept {
  ServerCall* call = ServerCall::Of(context);
  const Duration pushback = call == nullptr ? ServerSettings{}.pushback : call->core_.settings().pushback;
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(pushback).count();
  if (call == nullptr) {
    context->AddTrailingMetadata(std::string(kPushbackKey), std::to_string(milliseconds));
  } else {
    call->AddTrailer(std::string(kPushbackKey), std::to_string(milliseconds));
    call->core_.NoteRefusal(*call, Refusal::kOverloaded);
  }
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, why};
}

void ReplyReactor::FinishWith(grpc::Status status) noexcept {
  // acquire: with kFailed, failure_ is there.
  const std::uint32_t before = state_.fetch_or(kFinished, std::memory_order_acq_rel);
  if ((before & kFinished) != 0) return;
  if ((before & kFailed) != 0) status = std::move(failure_);
  EndScope(call_, CallScope::Ending::kFinished);
  Finish(Conclude(call_, std::move(status)));
}

void ReplyReactor::Fail(grpc::Status status) noexcept {
  failure_ = std::move(status);
  state_.fetch_or(kFailed, std::memory_order_acq_rel);  // release: publishes failure_ to who finishes
  EndScope(call_, CallScope::Ending::kFinished);
}

void ReplyReactor::Release() noexcept {
  const std::uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
  const std::uint32_t holders = before & (kFinished - 1);
  if (holders == 1) {
    delete this;
  } else if (holders == 2 && (before & kFinished) == 0) {
    // The other one is gRPC, which holds it until the call is finished, and nobody else is left to do that.
    FinishWith({grpc::StatusCode::INTERNAL, "the handler gave no answer"});
  }
}

}  // namespace detail
}  // namespace penstock::inline v0
