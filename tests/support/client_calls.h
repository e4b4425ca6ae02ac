#pragma once

// What the tests of the client share: a client of an Echo server, and calls whose end a test waits for.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "penstock/client/client.h"
#include "penstock/test/v1/echo.grpc.pb.h"
#include "support/eventually.h"

namespace penstock::test {

using namespace std::chrono_literals;

inline constexpr auto kLimit = std::chrono::seconds(30);

inline Client MakeClient(ClientSettings settings) {
  settings.plaintext = true;
  Result<Client> client = Client::Create(std::move(settings));
  if (!client.ok()) FAIL(client.error().message());
  return *std::move(client);
}

// The end of one call. May be copied; copies are one.
class Ending {
 public:
  // For Client::Call.
  auto Completion() {
    return [held = held_](const CallResult& result, v1::EchoResponse& response) {
      std::lock_guard lock(held->mutex);
      ++held->completions;
      held->result = result;
      held->trailers.clear();
      detail::CopyMetadata(result.trailers, held->trailers);
      held->result.headers = held->result.trailers = nullptr;
      held->response = response;
      held->ended.notify_all();
    };
  }

  // Fails the test when the call has not ended within 30 s.
  const CallResult& Wait() const {
    std::unique_lock lock(held_->mutex);
    const bool ended = held_->ended.wait_for(lock, kLimit, [&] { return held_->completions > 0; });
    REQUIRE_MESSAGE(ended, "the call has not ended");
    return held_->result;
  }
  bool ended() const { return completions() > 0; }
  int completions() const {
    std::lock_guard lock(held_->mutex);
    return held_->completions;
  }
  const v1::EchoResponse& response() const { return held_->response; }
  const std::multimap<std::string, std::string>& trailers() const { return held_->trailers; }

 private:
  struct Held {
    mutable std::mutex mutex;
    std::condition_variable ended;
    int completions = 0;
    CallResult result;
    v1::EchoResponse response;
    std::multimap<std::string, std::string> trailers;
  };
  std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

}  // namespace penstock::test
