#include "penstock/client/detail/unary_core.h"

#include <optional>
#include <string>
#include <utility>

#include "client/attempt.h"
#include "client/client_state.h"
#include "client/judge.h"
#include "client/user_code.h"

namespace penstock::inline v0::detail {

void UnaryCore::Begin(ClientState& state, const MethodInfo& method, CallOptions&& options, std::size_t request_bytes,
                      std::uint32_t references) noexcept {
  Renew(references);
  request_bytes_ = request_bytes;
  CallCore::Begin(state, method, std::move(options), request_bytes);
}

void UnaryCore::AttemptEndHere() noexcept {
  const bool plain = observation_ == nullptr && !state_->settings().classify && state_->observer() == nullptr;
  if (!result_.status.ok() || !plain) [[unlikely]] return JudgeHere();
  state_->NoteConnected();
  state_->broken_connections().Ended(broken_attempt_, *context_);
  if (sampled()) [[unlikely]] state_->NoteConnection(*context_);
  ticket_.Settle(Outcome::kSuccess);
  loop_.OnAnswered(state_->budget());
  result_.headers = &context_->GetServerInitialMetadata();
  result_.trailers = &context_->GetServerTrailingMetadata();
  result_.reason = EndReason::kAnswered;
  FinishHere();
}

void UnaryCore::JudgeHere() noexcept {
  const EndedAttempt end = ReadEnd(word_.reason(), request_bytes_);
  const bool ok = result_.status.ok();
  if (ok) state_->NoteConnected();
  if (sampled() && (ok || (end.connection != nullptr && end.facts.code != grpc::StatusCode::UNAVAILABLE))) {
    state_->NoteConnection(*context_);
  }
  const Reached reached = ok ? Reached::kResponded : ReachOf(*context_, result_.status, end.connection);
  FollowHere(end, SettleEnd(end, JudgeWithoutClassify(end.facts), reached));
}

void UnaryCore::FinishHere() noexcept {
  shard_ = Conclude();
  if (completes_unreferenced()) {
    if (DropReference()) DeliverUnreferenced();
    return;
  }
  RunCompletion(result_);
  Completed(shard_);
}

void UnaryCore::DeliverUnreferenced() noexcept {
  ClientState& state = *state_;
  const std::uint32_t shard = shard_;
  const CallResult result = std::move(result_);
  // An idle reactor must not hold what the options brought. Its context stays: the result's headers lie there, and once the
  // completion has run the reactor may be gone.
  options_ = CallOptions{};
  RunCompletion(result);
  state.registry().Completed(shard);
}

void UnaryCore::RunCompletion(const CallResult& result) noexcept {
  // Read first: the call may be gone when the completion throws.
  ClientState& state = *state_;
  const MethodEntry& method = *method_;
  auto complete = [&] { Complete(result); };
  const std::string thrown = RunUserCode("a completion", complete);
  if (!thrown.empty()) [[unlikely]] state.ReportFault(method.info->path, thrown);
}

}  // namespace penstock::inline v0::detail
