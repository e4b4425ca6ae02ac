#pragma once

// Plain gRPC callback clients under load: what a program without penstock sees of a rollout.
//
// Threads: the members from any.

#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "support/server_fixture.h"

namespace penstock::test {

// Plain gRPC callback clients that keep so many unary calls under way until told to stop, and count what fails. No
// retries: each failure is a call that a program would have seen fail.
class PlainLoad {
 public:
  PlainLoad(const std::string& address, int outstanding) : stub_(v1::Echo::NewStub(ChannelTo(address))) {
    for (int i = 0; i < outstanding; ++i) {
      calls_.push_back(std::make_unique<One>());
      Start(*calls_.back());
    }
  }
  ~PlainLoad() { Stop(); }

  void Stop() {
    stopping_ = true;
    Eventually([&] { return running_ == 0; });
  }
  long done() const { return done_; }
  long failed() const { return failed_; }
  std::string failures() const {
    std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [what, count] : failures_) text += what + " x" + std::to_string(count) + "; ";
    return text;
  }

 private:
  struct One {
    std::unique_ptr<grpc::ClientContext> context;
    EchoRequest request;
    EchoResponse response;
  };

  void Start(One& one) {
    ++running_;
    one.context = std::make_unique<grpc::ClientContext>();
    SetLimit(*one.context);
    stub_->async()->Unary(one.context.get(), &one.request, &one.response, [this, &one](grpc::Status status) {
      ++done_;
      if (!status.ok()) {
        ++failed_;
        std::lock_guard lock(mutex_);
        ++failures_[std::to_string(status.error_code()) + " " + status.error_message()];
      }
      if (!stopping_) Start(one);
      --running_;
    });
  }

  std::unique_ptr<v1::Echo::Stub> stub_;
  std::deque<std::unique_ptr<One>> calls_;
  std::atomic<bool> stopping_{false};
  std::atomic<long> running_{0}, done_{0}, failed_{0};
  mutable std::mutex mutex_;
  std::map<std::string, int> failures_;
};

}  // namespace penstock::test
