// The queue in front of a reactor's writes, on reactors that only note what they are given.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/runtime/queued_writes.h"
#include "support/eventually.h"

using namespace penstock;

namespace {

struct Message {
  std::string text;
  std::size_t ByteSizeLong() const { return text.size(); }
};

// What came to gRPC: "a" or, with the buffer hint, "a+".
struct Sink {
  std::vector<std::string> written;
  bool refuses = false;
  bool half_closed = false;
  bool open = true;  // A cancel before does nothing.
  bool cancelled = false;
  std::function<void()> on_start;   // Within StartWrite(), ...
  std::function<void()> on_cancel;  // ... before Cancel().
  int finished = 0;
  grpc::Status status;
  const Message* under_way = nullptr;
  std::mutex mutex;  // What comes by a hop comes on another thread.

  void Take(const Message* message, grpc::WriteOptions options) {
    std::lock_guard lock(mutex);
    CHECK(under_way == nullptr);
    under_way = message;
    written.push_back(message->text + (options.get_buffer_hint() ? "+" : ""));
  }
  bool taken() {
    std::lock_guard lock(mutex);
    return under_way != nullptr;
  }
};

// How many keep the reactor from ending.
class HoldLike {
 public:
  HoldLike() = default;
  explicit HoldLike(std::atomic<int>* holds) : holds_(holds) { ++*holds_; }
  HoldLike(HoldLike&& other) noexcept : holds_(std::exchange(other.holds_, nullptr)) {}
  HoldLike& operator=(HoldLike&& other) noexcept {
    std::swap(holds_, other.holds_);
    return *this;
  }
  ~HoldLike() {
    if (holds_ != nullptr) --*holds_;
  }
  explicit operator bool() const { return holds_ != nullptr; }

 private:
  std::atomic<int>* holds_ = nullptr;
};

// What the reactors offer beside their starts.
struct Reactor {
  void StartWrite() {}  // Not for who queues.
  HoldLike Hold() { return over ? HoldLike() : HoldLike(&holds); }
  template <class Function>
  void Guard(const char*, Function&& function) noexcept {
    ++guarded;
    function();
  }

  bool over = false;
  std::atomic<int> holds{0};
  std::atomic<int> guarded{0};
};

class ClientLike : public Reactor {
 public:
  using Written = Message;
  enum class Started { kStarted, kEnded };

  virtual ~ClientLike() = default;
  Started StartWriteOf(const Message* message, grpc::WriteOptions options, std::size_t bytes) {
    CHECK(bytes == message->text.size());
    if (sink.refuses) return Started::kEnded;
    sink.Take(message, options);
    if (sink.on_start) sink.on_start();
    return Started::kStarted;
  }
  Started StartWritesDone() {
    CHECK(sink.under_way == nullptr);
    sink.half_closed = true;
    return Started::kStarted;
  }
  void Cancel() {
    if (sink.on_cancel) sink.on_cancel();
    if (sink.open) sink.cancelled = true;
  }
  virtual void OnWriteDone(bool ok) = 0;

  Sink sink;
};

class ServerLike : public Reactor {
 public:
  using Written = Message;

  virtual ~ServerLike() = default;
  bool StartWriteOf(const Message* message, grpc::WriteOptions options, std::size_t bytes) {
    CHECK(bytes == message->text.size());
    if (sink.refuses) return false;
    sink.Take(message, options);
    return true;
  }
  bool Finish(grpc::Status status) {
    ++sink.finished;
    sink.status = std::move(status);
    return true;
  }
  virtual void OnWriteDone(bool ok) = 0;

  Sink sink;
};

template <class Like>
class Writer final : public QueuedWrites<Like> {
 public:
  using QueuedWrites<Like>::QueuedWrites;

  Queued Put(const std::string& text) { return this->Write(Message{text}); }
  void Done(bool ok = true) {
    this->sink.under_way = nullptr;
    static_cast<Like*>(this)->OnWriteDone(ok);
  }
  void DoneAll() {
    while (this->sink.under_way != nullptr) Done();
  }

  int writable = 0;
  int failed = 0;
  std::function<void()> on_writable;

 private:
  void OnWritable() override {
    CHECK(failed == 0);
    CHECK_FALSE(telling_now);
    telling_now = true;
    ++writable;
    if (on_writable) on_writable();
    telling_now = false;
  }
  void OnWritesFailed() override {
    CHECK_FALSE(telling_now);
    ++failed;
  }

  bool telling_now = false;
};

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE_TEMPLATE("S9: the buffer hint is set exactly where another message waits", Like, ClientLike, ServerLike) {
  Writer<Like> writer;
  CHECK(writer.Put("a") == Queued::kQueued);
  CHECK(writer.sink.written == Strings{"a"});  // Nothing waits behind it.
  writer.Put("b");
  writer.Put("c");
  CHECK(writer.sink.written.size() == 1);
  CHECK(writer.waiting() == 2);
  writer.Done();
  CHECK(writer.sink.written == Strings{"a", "b+"});
  writer.Done();
  CHECK(writer.sink.written == Strings{"a", "b+", "c"});
  writer.Done();
  writer.Put("d");
  CHECK(writer.sink.written == Strings{"a", "b+", "c", "d"});
}

TEST_CASE("S10: a full queue refuses, and says so when half of it is free again") {
  Writer<ClientLike> writer({.max_messages = 4});
  writer.Put("0");  // gRPC has it: it does not wait.
  for (const char* text : {"1", "2", "3", "4"}) CHECK(writer.Put(text) == Queued::kQueued);
  CHECK(writer.Put("5") == Queued::kFull);
  writer.Done();
  CHECK(writer.waiting() == 3);
  CHECK(writer.writable == 0);
  writer.Done();
  CHECK(writer.waiting() == 2);
  CHECK(writer.writable == 1);
  writer.DoneAll();
  CHECK(writer.writable == 1);  // Once a refusal.
  CHECK(writer.sink.written == Strings{"0", "1+", "2+", "3+", "4"});
}

TEST_CASE("S10: bytes are bounded too, just at the bound and just over it") {
  Writer<ClientLike> writer({.max_messages = 100, .max_bytes = 10});
  CHECK(writer.Put("0123456789a") == Queued::kTooLarge);
  CHECK(writer.Put("0123456789") == Queued::kQueued);
  CHECK(writer.Put("01234") == Queued::kQueued);
  CHECK(writer.Put("012345") == Queued::kFull);
  CHECK(writer.Put("01234") == Queued::kQueued);
  CHECK(writer.Put("0") == Queued::kFull);
  CHECK(writer.Put("") == Queued::kQueued);
  writer.Done();
  CHECK(writer.writable == 1);
}

TEST_CASE("S10: dropping the oldest keeps the newest, and the promise of the hint") {
  Writer<ServerLike> writer({.max_messages = 1, .when_full = WhenFull::kDropOldest});
  writer.Put("0");
  writer.Put("1");
  writer.Done();  // "1" is under way, without a hint.
  writer.Put("2");
  writer.Put("3");
  writer.Put("4");
  CHECK(writer.dropped() == 2);
  writer.DoneAll();
  CHECK(writer.sink.written == Strings{"0", "1", "4"});

  Writer<ServerLike> other({.max_messages = 2, .when_full = WhenFull::kDropOldest});
  for (const char* text : {"0", "1", "2"}) other.Put(text);
  other.Done();  // "1+" is under way: it has promised another.
  other.Put("3");
  other.Put("4");
  other.Put("5");
  CHECK(other.waiting() == 2);
  other.DoneAll();
  CHECK(other.sink.written == Strings{"0", "1+", "4+", "5"});
  CHECK(other.dropped() == 2);
}

TEST_CASE("S10: what gRPC would abort on is refused, whatever the bound") {
  struct Long {
    std::size_t bytes = 0;
    std::size_t ByteSizeLong() const { return bytes; }
  };
  struct Sized : Reactor {
    using Written = Long;
    virtual ~Sized() = default;
    bool StartWriteOf(const Long*, grpc::WriteOptions, std::size_t) { return true; }
    bool Finish(grpc::Status) { return true; }
    virtual void OnWriteDone(bool ok) = 0;
  };
  QueuedWrites<Sized> writer({.max_bytes = std::numeric_limits<std::size_t>::max()});
  CHECK(writer.Write(Long{std::size_t{1} << 31}) == Queued::kTooLarge);
  CHECK(writer.Write(Long{(std::size_t{1} << 31) - 1}) == Queued::kQueued);
}

TEST_CASE("S10: a stream that may miss nothing is ended by a full queue") {
  Writer<ServerLike> server({.max_messages = 1, .when_full = WhenFull::kEndStream});
  server.Put("0");
  server.Put("1");
  CHECK(server.Put("2") == Queued::kEnded);
  CHECK(server.sink.finished == 1);
  CHECK(server.sink.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(server.Put("3") == Queued::kEnded);
  server.DoneAll();
  CHECK(server.sink.written == Strings{"0"});
  CHECK(server.sink.finished == 1);

  Writer<ClientLike> client({.max_messages = 1, .when_full = WhenFull::kEndStream});
  client.Put("0");
  client.Put("1");
  CHECK(client.Put("2") == Queued::kEnded);
  CHECK(client.sink.cancelled);
}

TEST_CASE("S10: a client's stream that a full queue ends is cancelled and never half-closed, which would be a whole one") {
  // The end of the write that is under way comes before the cancel.
  Writer<ClientLike> writer({.max_messages = 1, .when_full = WhenFull::kEndStream});
  writer.Put("0");
  writer.Put("1");
  writer.sink.on_cancel = [&] {
    writer.sink.on_cancel = nullptr;
    writer.Done();
  };
  CHECK(writer.Put("2") == Queued::kEnded);
  CHECK(writer.sink.cancelled);
  CHECK_FALSE(writer.sink.half_closed);

  // Full before it is open: the cancel that does nothing then is made when it can be.
  Writer<ClientLike> early({.max_messages = 1, .when_full = WhenFull::kEndStream});
  early.sink.open = false;
  early.Put("0");
  early.Put("1");
  CHECK(early.Put("2") == Queued::kEnded);
  early.WritesDone();
  CHECK_FALSE(early.sink.cancelled);
  early.sink.open = true;
  early.Done();
  CHECK(early.sink.cancelled);
  CHECK_FALSE(early.sink.half_closed);
}

TEST_CASE("S10: OnWritable and OnWritesFailed come one at a time, and OnWritable never after the other") {
  // The next write has failed before the room that the one before it left is told.
  Writer<ClientLike> early({.max_messages = 2});
  for (const char* text : {"0", "1", "2"}) early.Put(text);
  CHECK(early.Put("3") == Queued::kFull);
  early.sink.on_start = [&] { early.Done(false); };
  early.Done();
  CHECK(early.failed == 1);
  CHECK(early.writable == 0);

  // It fails while that is told: OnWritesFailed waits, but nobody else does.
  Writer<ClientLike> late({.max_messages = 2});
  for (const char* text : {"0", "1", "2"}) late.Put(text);
  CHECK(late.Put("3") == Queued::kFull);
  late.on_writable = [&] {
    std::thread([&] { late.Done(false); }).join();
    CHECK(late.failed == 0);
    CHECK(late.Put("4") == Queued::kEnded);
  };
  late.Done();
  CHECK(late.writable == 1);
  CHECK(late.failed == 1);
}

TEST_CASE("S10: the memory that is kept to be used again is bounded by max_bytes") {
  constexpr std::size_t kMost = 1'000;
  constexpr std::size_t kPlaces = 8;
  Writer<ClientLike> writer({.max_messages = kPlaces, .max_bytes = kMost});
  // Long ones pass through every place, then short ones lie where those were.
  for (std::size_t i = 0; i < 3 * kPlaces; ++i) {
    writer.Put(std::string(900, 'a'));
    if (i > 0) writer.Done();
  }
  for (std::size_t i = 0; i < 3 * kPlaces; ++i) {
    const Message small{"a"};
    CHECK(writer.Write(small) == Queued::kQueued);
    writer.Done();
  }
  writer.DoneAll();
  // Each message that is moved in is left with what its place kept.
  std::size_t kept = 0;
  writer.Put("under way");
  for (std::size_t i = 0; i < kPlaces; ++i) {
    Message message{"b"};
    CHECK(writer.Write(std::move(message)) == Queued::kQueued);
    kept += message.text.capacity();
  }
  CHECK(kept <= 2 * kMost);  // and what every string has
}

TEST_CASE("S10: the half-close and the finish come after what was queued, and once") {
  Writer<ClientLike> client;
  client.Put("a");
  client.Put("b");
  client.WritesDone();
  CHECK(client.Put("c") == Queued::kEnded);
  CHECK_FALSE(client.sink.half_closed);
  client.Done();
  CHECK_FALSE(client.sink.half_closed);
  client.Done();
  CHECK(client.sink.half_closed);
  CHECK(client.sink.written == Strings{"a", "b"});

  Writer<ClientLike> empty;
  empty.WritesDone();
  CHECK(empty.sink.half_closed);

  Writer<ServerLike> server;
  server.Put("a");
  server.FinishAfterWrites({grpc::StatusCode::ABORTED, "first"});
  server.FinishAfterWrites({grpc::StatusCode::ABORTED, "second"});
  CHECK(server.sink.finished == 0);
  server.Done();
  CHECK(server.sink.finished == 1);
  CHECK(server.sink.status.error_message() == "first");
}

TEST_CASE("S10: a write that fails drops what waited, and nothing is taken after it") {
  Writer<ClientLike> writer;
  writer.Put("a");
  writer.Put("b");
  writer.Done(false);
  CHECK(writer.failed == 1);
  CHECK(writer.waiting() == 0);
  CHECK(writer.Put("c") == Queued::kEnded);
  CHECK(writer.sink.written == Strings{"a"});

  Writer<ServerLike> refused;
  refused.Put("a");
  refused.Put("b");
  refused.sink.refuses = true;  // The call is ending: StartWrite says so.
  refused.Done();
  CHECK(refused.failed == 1);
  CHECK(refused.Put("c") == Queued::kEnded);

  Writer<ServerLike> over;
  over.sink.refuses = true;
  CHECK(over.Put("a") == Queued::kEnded);
  CHECK(over.failed == 0);  // Write() has said it.
}

TEST_CASE_TEMPLATE("S9: messages that come until the hop go out in one piece; a stream's first does not wait", Like, ClientLike, ServerLike) {
  Writer<Like> writer({.max_messages = 3, .coalesce = true});
  writer.Put("first");
  CHECK(writer.sink.written == Strings{"first"});
  writer.Done();
  // Now and then a message is written at once all the same (coalescer_test), or the hop comes before the second.
  const Strings together = {"a+", "b+", "c+", "d"};
  for (int i = 0; i < 10'000 && writer.sink.written != together; ++i) {
    writer.sink.written.clear();
    for (const char* text : {"a", "b", "c", "d"}) REQUIRE(writer.Put(text) == Queued::kQueued);
    CHECK(writer.Put("e") == Queued::kFull);  // As if gRPC had the first one already.
    REQUIRE(test::Eventually([&] { return writer.sink.taken(); }));
    writer.DoneAll();
    REQUIRE(writer.sink.written.size() == 4);
    CHECK(writer.writable == i + 1);
  }
  CHECK(writer.sink.written == together);
  CHECK(test::Eventually([&] { return writer.holds == 0; }));
  CHECK(writer.guarded == 0);
}

TEST_CASE_TEMPLATE("S10: a stream that ends while its messages wait for others tells OnWritesFailed, once", Like, ClientLike, ServerLike) {
  bool waited = false;
  for (int i = 0; i < 100 && !waited; ++i) {
    Writer<Like> writer({.coalesce = true});
    writer.Put("first");
    writer.Done();
    writer.sink.refuses = true;
    waited = writer.Put("a") == Queued::kQueued;
    if (!waited) continue;  // It was written at once, and Write() has said it.
    CHECK(test::Eventually([&] { return writer.guarded == 1 && writer.holds == 0; }));
    CHECK(writer.failed == 1);
    CHECK(writer.Put("c") == Queued::kEnded);
    CHECK(writer.sink.written == Strings{"first"});
  }
  CHECK(waited);

  // There is nothing to hold any more: it is written at once.
  for (int i = 0; i < 100; ++i) {
    Writer<Like> over({.coalesce = true});
    over.Put("first");
    over.Done();
    over.over = true;
    CHECK(over.Put("a") == Queued::kQueued);
    REQUIRE(over.sink.written == Strings{"first", "a"});
  }
}

TEST_CASE("S10: messages of several threads all go out, those of each in order") {
  Writer<ServerLike> writer({.max_messages = 100'000});
  constexpr int kEach = 5'000;
  writer.Put("first");  // Under way until all have written.
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kEach; ++i) writer.Put(std::string(1, static_cast<char>('a' + thread)) + std::to_string(i));
      });
    }
  }
  writer.DoneAll();
  CHECK(writer.sink.written.size() == 1 + 4 * kEach);
  std::vector<int> next(4, 0);
  for (std::size_t i = 1; i < writer.sink.written.size(); ++i) {
    const std::string& text = writer.sink.written[i];
    const int thread = text[0] - 'a';
    REQUIRE(std::stoi(text.substr(1)) == next[static_cast<std::size_t>(thread)]++);
    CHECK((text.back() == '+') == (i + 1 < writer.sink.written.size()));
  }
}
