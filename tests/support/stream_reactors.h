#pragma once

// Reactors that write down what they hear, and can be waited on.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/client/client.h"
#include "penstock/test/v1/echo.grpc.pb.h"

namespace penstock::test {

// What a stream's reactor heard, in order: "opened", "read" or "read:no", "write", "write:no", "half", "half:no", "done".
class Heard {
 public:
  void Add(std::string what) {
    std::lock_guard lock(mutex_);
    all_.push_back(std::move(what));
    changed_.notify_all();
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return all_;
  }
  std::size_t Count(const std::string& what) const {
    std::lock_guard lock(mutex_);
    return CountLocked(what);
  }
  // False when 30 s were not enough.
  bool WaitFor(const std::string& what, std::size_t count = 1) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return CountLocked(what) >= count; });
  }

 private:
  std::size_t CountLocked(const std::string& what) const {
    std::size_t count = 0;
    for (const std::string& each : all_) count += each == what;
    return count;
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::string> all_;
};

// The parts that the kinds share. `Base` is one of penstock's reactors.
template <class Base>
class Recording : public Base {
 public:
  Heard heard;
  CallResult result;  // Once "done" was heard.
  std::multimap<std::string, std::string> trailers;
  std::function<void()> on_opened = [] {};
  std::function<void()> on_done = [] {};

  const CallResult& Wait() {
    heard.WaitFor("done");
    return result;
  }

  void OnOpened() override {
    heard.Add("opened");
    on_opened();
  }
  void OnDone(const CallResult& ended) override {
    result = ended;
    if (ended.trailers != nullptr) {
      for (const auto& [key, value] : *ended.trailers) trailers.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
    }
    result.headers = result.trailers = nullptr;
    on_done();
    heard.Add("done");
  }
};

class DownReader : public Recording<ClientReadReactor<v1::EchoResponse>> {
 public:
  v1::EchoResponse message;
  std::function<void()> on_read = [this] { (void)StartRead(&message); };

  void OnReadDone(bool ok) override {
    heard.Add(ok ? "read" : "read:no");
    if (ok) on_read();
  }
};

class UpWriter : public Recording<ClientWriteReactor<v1::EchoRequest>> {
 public:
  v1::EchoRequest request;
  v1::EchoResponse response;
  std::function<void()> on_write = [] {};

  void OnWriteDone(bool ok) override {
    heard.Add(ok ? "write" : "write:no");
    if (ok) on_write();
  }
  void OnWritesDoneDone(bool ok) override { heard.Add(ok ? "half" : "half:no"); }
};

class BidiTalker : public Recording<ClientBidiReactor<v1::EchoRequest, v1::EchoResponse>> {
 public:
  v1::EchoRequest request;
  v1::EchoResponse message;
  std::function<void()> on_read = [this] { (void)StartRead(&message); };
  std::function<void()> on_write = [] {};

  void OnReadDone(bool ok) override {
    heard.Add(ok ? "read" : "read:no");
    if (ok) on_read();
  }
  void OnWriteDone(bool ok) override {
    heard.Add(ok ? "write" : "write:no");
    if (ok) on_write();
  }
  void OnWritesDoneDone(bool ok) override { heard.Add(ok ? "half" : "half:no"); }
};

}  // namespace penstock::test
