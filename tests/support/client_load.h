#pragma once

// Calls that are always in flight, and what becomes of them.
//
// Threads: the members from any. Ownership: the client outlives it.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/client/client.h"
#include "support/client_calls.h"

namespace penstock::test {

// Keeps so many calls in flight until it is stopped.
class Load {
 public:
  // Every `refused_of`th is refused (0: none); a call takes `delay_ms` at the server.
  Load(Client& client, int outstanding, int refused_of = 0, int delay_ms = 2)
      : client_(client), refused_of_(refused_of), delay_ms_(delay_ms) {
    running_ = outstanding;
    for (int call = 0; call < outstanding; ++call) Next();
  }
  ~Load() { Stop(); }

  void Stop() {
    stopping_ = true;
    CHECK(Eventually([&] { return running_ == 0; }));
  }
  std::uint64_t answered() const { return answered_; }
  std::uint64_t failed() const { return failed_; }
  // Of the calls since it was asked last.
  std::chrono::nanoseconds TakeSlowest() { return std::chrono::nanoseconds(slowest_.exchange(0)); }
  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void Next() {
    v1::EchoRequest request;
    request.set_delay_ms(delay_ms_);
    if (refused_of_ != 0 && ++asked_ % refused_of_ == 0) {
      request.set_code(grpc::StatusCode::UNAVAILABLE);
      request.set_message("refused");
    }
    const auto begin = std::chrono::steady_clock::now();
    client_.Call(PENSTOCK_METHOD(v1::Echo, Repeatable), std::move(request), {},
                 [this, begin](const CallResult& result, v1::EchoResponse&) {
                   const std::int64_t took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
                   std::int64_t slowest = slowest_;
                   while (took > slowest && !slowest_.compare_exchange_weak(slowest, took)) {
                   }
                   if (result.ok()) {
                     ++answered_;
                   } else {
                     ++failed_;
                     const std::lock_guard lock(mutex_);
                     failure_ = std::string(Name(result.reason)) + ": " + result.status.error_message();
                   }
                   if (stopping_) {
                     --running_;
                   } else {
                     Next();
                   }
                 });
  }

  Client& client_;
  const int refused_of_;
  const int delay_ms_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_{0};
  std::atomic<std::uint64_t> asked_{0}, answered_{0}, failed_{0};
  std::atomic<std::int64_t> slowest_{0};
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace penstock::test
