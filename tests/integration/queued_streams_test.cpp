// Streams behind a write queue, on real connections: every message arrives, in order, whatever carries a buffer hint.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "penstock/client/client.h"
#include "penstock/runtime/queued_writes.h"
#include "support/server_fixture.h"

namespace penstock::test {
namespace {

constexpr int kMessages = 3'000;

// Sends as many messages as are asked for, as fast as they are taken.
class QueuedDown final : public QueuedWrites<ServerWriteReactor<EchoResponse>> {
 public:
  explicit QueuedDown(const EchoRequest& request) : QueuedWrites({.max_messages = 16}), left_(request.count()) { OnWritable(); }

 private:
  void OnWritable() override {
    for (; left_ > 0; --left_) {
      EchoResponse response;
      response.set_sequence(next_);
      if (Write(std::move(response)) != Queued::kQueued) return;
      ++next_;
    }
    FinishAfterWrites({grpc::StatusCode::ABORTED, "all of them"});
  }

  int left_;
  int next_ = 0;
};

// Answers each message, and reads on meanwhile.
class QueuedBidi final : public QueuedWrites<ServerBidiReactor<EchoRequest, EchoResponse>> {
 public:
  explicit QueuedBidi(bool coalesce) : QueuedWrites({.max_messages = 4, .coalesce = coalesce}) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return FinishAfterWrites(grpc::Status::OK);
    response_.set_text(request_.text());
    OnWritable();
  }
  void OnWritable() override {
    if (Write(response_) == Queued::kQueued) StartRead(&request_);
  }

  EchoRequest request_;
  EchoResponse response_;
};

class Counter final : public ServerReadReactor<EchoRequest> {
 public:
  explicit Counter(EchoResponse* response) : response_(response) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      in_order_ = in_order_ && request_.count() == messages_;
      ++messages_;
      StartRead(&request_);
      return;
    }
    response_->set_sequence(messages_);
    response_->set_text(in_order_ ? "in order" : "out of order");
    Finish(grpc::Status::OK);
  }

  EchoResponse* response_;
  EchoRequest request_;
  int messages_ = 0;
  bool in_order_ = true;
};

class QueuedEcho final : public Service<v1::Echo> {
 public:
  explicit QueuedEcho(bool coalesce) : coalesce_(coalesce) {}

 private:
  grpc::ServerWriteReactor<EchoResponse>* Down(grpc::CallbackServerContext* context, const EchoRequest* request) override {
    return Start<QueuedDown>(context, *request);
  }
  grpc::ServerBidiReactor<EchoRequest, EchoResponse>* Bidi(grpc::CallbackServerContext* context) override {
    return Start<QueuedBidi>(context, coalesce_);
  }
  grpc::ServerReadReactor<EchoRequest>* Up(grpc::CallbackServerContext* context, EchoResponse* response) override {
    return Start<Counter>(context, response);
  }
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoRequest*, EchoResponse* response) override {
    return Handle(context, [&] {
      std::lock_guard lock(mutex_);
      peers_.insert(context->peer());
      response->set_sequence(static_cast<int>(peers_.size()));
      return grpc::Status::OK;
    });
  }

  const bool coalesce_;
  std::mutex mutex_;
  std::set<std::string> peers_;
};

struct Pair {
  explicit Pair(std::uint32_t channels = 1, bool coalesce = false)
      : echo(coalesce), server(*Server::Create({.address = "127.0.0.1:0", .plaintext = true, .drain = {}, .grace = 1s}, {&echo})) {
    ClientSettings settings;
    settings.address = "127.0.0.1:" + std::to_string(server->port());
    settings.plaintext = true;
    settings.connection.channels = channels;
    client.emplace(*Client::Create(std::move(settings)));
  }

  QueuedEcho echo;
  std::unique_ptr<Server> server;
  std::optional<Client> client;
};

class Reader final : public ClientReadReactor<EchoResponse> {
 public:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    in_order = in_order && message.sequence() == messages;
    ++messages;
    (void)StartRead(&message);
  }
  void OnDone(const CallResult& result) override {
    status = result.status;
    done = true;
  }

  EchoResponse message;
  int messages = 0;
  bool in_order = true;
  grpc::Status status;
  std::atomic<bool> done{false};
};

class Writer final : public QueuedWrites<ClientWriteReactor<EchoRequest>> {
 public:
  Writer() : QueuedWrites({.max_messages = 8}) {}
  void OnWritable() override {
    for (; next_ < kMessages; ++next_) {
      EchoRequest request;
      request.set_count(next_);
      if (Write(std::move(request)) != Queued::kQueued) return;
    }
    WritesDone();
  }
  void OnDone(const CallResult& result) override {
    status = result.status;
    done = true;
  }

  EchoResponse response;
  grpc::Status status;
  std::atomic<bool> done{false};

 private:
  int next_ = 0;
};

class Talker final : public QueuedWrites<ClientBidiReactor<EchoRequest, EchoResponse>> {
 public:
  explicit Talker(int window, bool coalesce = false, int count = kMessages)
      : QueuedWrites({.coalesce = coalesce}), window_(window), count_(count) {}
  void Begin() {
    (void)StartRead(&message);
    while (sent_ < window_) Send();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    in_order = in_order && message.text() == std::to_string(messages);
    ++messages;
    if (sent_ < count_) Send();
    if (messages == count_) WritesDone();
    (void)StartRead(&message);
  }
  void OnDone(const CallResult& result) override {
    status = result.status;
    ++ends;
    done = true;
  }
  void OnWritesFailed() override { ++failures; }

  EchoResponse message;
  int messages = 0;
  bool in_order = true;
  int failures = 0;
  int ends = 0;
  grpc::Status status;
  std::atomic<bool> done{false};

 private:
  void Send() {
    EchoRequest request;
    request.set_text(std::to_string(sent_++));
    if (Write(std::move(request)) != Queued::kQueued) in_order = false;
  }

  const int window_;
  const int count_;
  int sent_ = 0;
};

}  // namespace

TEST_CASE("S9: a server's queued messages all arrive, in order, and the status after them") {
  Pair pair;
  for (const int count : {1, 2, 17, kMessages}) {
    Reader reader;
    EchoRequest request;
    request.set_count(count);
    CHECK(reader.StartRead(&reader.message) == StreamStart::kStarted);
    pair.client->Open(PENSTOCK_METHOD(v1::Echo, Down), request, {}, reader);
    REQUIRE(Eventually([&] { return reader.done.load(); }));
    CHECK(reader.messages == count);
    CHECK(reader.in_order);
    CHECK(reader.status.error_message() == "all of them");
  }
}

TEST_CASE("S9: a client's queued messages all arrive, in order, those from before the opening too") {
  Pair pair;
  Writer writer;
  writer.OnWritable();
  pair.client->Open(PENSTOCK_METHOD(v1::Echo, Up), {}, &writer.response, writer);
  REQUIRE(Eventually([&] { return writer.done.load(); }));
  CHECK(writer.status.ok());
  CHECK(writer.response.sequence() == kMessages);
  CHECK(writer.response.text() == "in order");
}

TEST_CASE("S9: with one message under way and with many, no answer is held back by a hint") {
  Pair pair;
  for (const int window : {1, 2, 16}) {
    Talker talker(window);
    talker.Begin();
    pair.client->Open(PENSTOCK_METHOD(v1::Echo, Bidi), {}, talker);
    REQUIRE(Eventually([&] { return talker.done.load(); }));
    CHECK(talker.status.ok());
    CHECK(talker.messages == kMessages);
    CHECK(talker.in_order);
  }
}

TEST_CASE("S9: messages that wait for those of other streams all arrive, in order") {
  Pair pair(1, true);
  std::deque<Talker> talkers;
  for (int i = 0; i < 24; ++i) talkers.emplace_back(i < 12 ? 16 : 1, true, 500).Begin();
  for (Talker& talker : talkers) pair.client->Open(PENSTOCK_METHOD(v1::Echo, Bidi), {}, talker);
  for (Talker& talker : talkers) {
    REQUIRE(Eventually([&] { return talker.done.load(); }));
    CHECK(talker.status.ok());
    CHECK(talker.messages == 500);
    CHECK(talker.in_order);
    CHECK(talker.failures == 0);
  }
}

TEST_CASE("S10: streams that are cancelled or shut down while messages wait for others end once, and soon") {
  for (int round = 0; round < 10; ++round) {
    Pair pair(1, true);
    std::deque<Talker> talkers;
    for (int i = 0; i < 24; ++i) talkers.emplace_back(16, true, std::numeric_limits<int>::max()).Begin();
    for (Talker& talker : talkers) pair.client->Open(PENSTOCK_METHOD(v1::Echo, Bidi), {}, talker);
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + round));
    for (std::size_t i = 0; i < talkers.size(); i += 2) talkers[i].Cancel();
    pair.server->Shutdown();
    for (Talker& talker : talkers) {
      REQUIRE(Eventually([&] { return talker.done.load(); }));
      CHECK_FALSE(talker.status.ok());
      CHECK(talker.ends == 1);
      CHECK(talker.failures <= 1);
    }
  }
}

TEST_CASE("L1: a client of several channels makes its calls over as many connections") {
  for (const std::uint32_t channels : {1u, 3u}) {
    Pair pair(channels);
    int connections = 0;
    for (int i = 0; i < 12; ++i) {
      const auto called = pair.client->CallAndWait(PENSTOCK_METHOD(v1::Echo, Unary), {});
      REQUIRE(called.ok());
      connections = called.response.sequence();
    }
    CHECK(connections == static_cast<int>(channels));
  }
}

}  // namespace penstock::test
