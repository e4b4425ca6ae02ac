#include "penstock/client/client.h"

#include "client/client_state.h"
#include "client/guarded_channel.h"
#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0 {

Result<Client> Client::Create(ClientSettings settings) {
  Result<detail::ClientState*> state = detail::ClientState::Create(std::move(settings));
  if (!state.ok()) return state.error();
  return Client(*state);
}

Client::~Client() {
  if (state_ == nullptr) return;
  state_->Close();
  state_->Release();
}

std::shared_ptr<grpc::Channel> Client::GuardedChannel() { return detail::MakeGuardedChannel(*state_); }

void Client::Close() noexcept { state_->Close(); }

bool Client::CloseAndWait(std::chrono::steady_clock::time_point until) noexcept {
  state_->Close();
  if (OnCallbackThread()) return false;
  return state_->registry().WaitIdle(until);
}

std::shared_ptr<ReadinessMonitor> Client::Connected() const { return state_->connected(); }
CircuitState Client::circuit_state() const noexcept { return state_->breaker().state(); }
Counts Client::circuit_counts() const noexcept { return state_->breaker().counts(); }
CircuitTotals Client::circuit_totals() const noexcept { return state_->breaker().totals(); }
std::vector<ClientConnection> Client::connections() const { return state_->connections(); }
double Client::budget_tokens() const noexcept { return state_->budget().milli_tokens() / 1000.0; }

namespace detail {

bool RefusedToWait(CallResult& result) {
  if (!OnCallbackThread()) return false;
  result.status = {grpc::StatusCode::FAILED_PRECONDITION, "a callback thread must not wait for a call"};
  return true;
}

void CopyMetadata(const ServerMetadata* from, std::multimap<std::string, std::string>& to) {
  if (from == nullptr) return;
  for (const auto& [key, value] : *from) to.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
}

}  // namespace detail
}  // namespace penstock::inline v0
