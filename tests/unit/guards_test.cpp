// What guards a call's edges: metadata, status messages, deadlines, pushback, status codes.

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "runtime/inbound_deadline.h"
#include "runtime/metadata.h"
#include "runtime/pushback.h"
#include "runtime/status_code.h"
#include "runtime/status_text.h"

using namespace penstock;
using namespace penstock::detail;
using namespace std::chrono_literals;

TEST_CASE("G1: a metadata key has letters in lower case, digits, dash, underscore and dot") {
  for (int byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    const std::string key = std::string("x") + static_cast<char>(byte);
    const bool legal =
        (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' || byte == '_' || byte == '.';
    CHECK(LegalMetadataKey(key) == legal);
    CHECK(MetadataProblem(key, "v").has_value() == !legal);
  }
  CHECK_FALSE(LegalMetadataKey(""));
  CHECK_FALSE(LegalMetadataKey(":path"));
  CHECK_FALSE(LegalMetadataKey("Foo"));
}

TEST_CASE("G1: a metadata value is printable ASCII, of a -bin key any bytes") {
  for (int byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    const std::string value = std::string("a") + static_cast<char>(byte) + "b";
    CHECK(LegalMetadataValue("x", value) == (byte >= 0x20 && byte <= 0x7e));
    CHECK(LegalMetadataValue("x-bin", value));
    CHECK(MetadataProblem("x", value).has_value() == !(byte >= 0x20 && byte <= 0x7e));
  }
  CHECK(LegalMetadataValue("x", ""));
}

TEST_CASE("G1: what gRPC and HTTP/2 set themselves is refused") {
  for (const char* key : {"grpc-timeout", "grpc-status", "grpc-encoding", "grpc-", "te", "content-type", "host",
                          "user-agent", "connection", "transfer-encoding", "content-length", "upgrade"}) {
    CAPTURE(key);
    CHECK_FALSE(LegalMetadataKey(key));
    CHECK(MetadataProblem(key, "v"));
  }
  for (const char* key : {"authorization", "x-request-id", "traceparent", "baggage", "grpcx", "te2", "cookie"})
    CHECK(LegalMetadataKey(key));
}

TEST_CASE("G1: an illegal value is not told, since it may be a secret") {
  const auto problem = MetadataProblem("authorization", "Bearer s3cret\n");
  REQUIRE(problem);
  CHECK(problem->find("s3cret") == std::string::npos);
  CHECK(problem->find("authorization") != std::string::npos);
}

TEST_CASE("G2: a status message of up to 1 KiB encoded passes as it is, a longer one is cut with a mark") {
  CHECK(CutStatusText("") == "");
  const std::string just(1024, 'a');
  CHECK(CutStatusText(just) == just);
  const std::string cut = CutStatusText(just + "a");
  CHECK(cut.size() == 1024);
  CHECK(cut == std::string(1024 - kCutMark.size(), 'a') + std::string(kCutMark));
  // Each line feed and each percent sign travels as three bytes.
  const std::string feeds(341, '\n');
  CHECK(CutStatusText(feeds) == feeds);
  CHECK(EncodedSize(CutStatusText(std::string(3000, '\n'))) <= 1024);
  CHECK(CutStatusText(std::string(3000, '%')).ends_with(kCutMark));
  CHECK(EncodedSize("a%\n\xc3\xa9~\x7f") == 1 + 3 + 3 + 6 + 1 + 3);
}

TEST_CASE("G2: a message is cut between two characters") {
  for (std::size_t offset = 0; offset < 12; ++offset) {
    CAPTURE(offset);
    for (const std::string character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
      std::string text(offset, 'a');
      while (text.size() < 5000) text += character;
      const std::string cut = CutStatusText(text);
      REQUIRE(cut.ends_with(kCutMark));
      const std::size_t kept = cut.size() - kCutMark.size();
      CHECK((kept - offset) % character.size() == 0);
      CHECK(text.starts_with(cut.substr(0, kept)));
      CHECK(EncodedSize(cut) <= 1024);
      CHECK(EncodedSize(cut) > 1024 - 12 - 12);
    }
  }
}

TEST_CASE("G2, G6: whatever bytes a message has, it fits and only its end is lost") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int step = 0; step < 3'000; ++step) {
    std::string text(random() % 2000, '\0');
    const unsigned spread = random() % 4;
    for (char& byte : text)
      byte = static_cast<char>(spread == 0   ? 0x80 + random() % 128
                               : spread == 1 ? 'a' + random() % 26
                                             : random() % 256);
    const std::string cut = CutStatusText(text);
    REQUIRE(EncodedSize(cut) <= kLongestStatusText);
    if (EncodedSize(text) <= kLongestStatusText) {
      REQUIRE(cut == text);
    } else {
      REQUIRE(cut.ends_with(kCutMark));
      REQUIRE(text.starts_with(cut.substr(0, cut.size() - kCutMark.size())));
    }
  }
}

TEST_CASE("G3: an inbound timeout too large for the clock is no deadline") {
  const gpr_timespec now{1000, 500, GPR_CLOCK_MONOTONIC};
  const auto in = [&](std::int64_t seconds) {
    return gpr_timespec{now.tv_sec + seconds, now.tv_nsec, GPR_CLOCK_MONOTONIC};
  };
  CHECK(RemainingOf(in(10), now) == 10s);
  CHECK(RemainingOf(in(0), now) == 0s);
  CHECK(RemainingOf(in(-3), now) == -3s);
  CHECK(RemainingOf({1000, 499, GPR_CLOCK_MONOTONIC}, now) == -1ns);
  // As gRPC tells grpc-timeout values of 2100000H, 2562048H, 5124095H, 5124096H, 99999999M and 99999999H.
  for (const std::int64_t seconds :
       {7'560'000'000, 9'223'372'800, 18'446'742'000, 18'446'745'600, 5'999'999'940, 359'999'996'400}) {
    CAPTURE(seconds);
    CHECK_FALSE(RemainingOf(in(seconds), now));
    CHECK_FALSE(InboundDeadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), {seconds, 0, GPR_TIMESPAN}), TimePoint(1h)));
  }
  const std::int64_t century = kFarthestDeadline / 1s;
  CHECK_FALSE(RemainingOf(in(century), now));
  CHECK(RemainingOf(in(century - 1), now) == kFarthestDeadline - 1s);
  CHECK_FALSE(RemainingOf(gpr_inf_future(GPR_CLOCK_MONOTONIC), now));
  CHECK_FALSE(RemainingOf(gpr_inf_future(GPR_CLOCK_REALTIME), now));
}

TEST_CASE("G3: a deadline that has passed stays one, however long ago") {
  const gpr_timespec now{1000, 0, GPR_CLOCK_MONOTONIC};
  CHECK(RemainingOf(gpr_inf_past(GPR_CLOCK_MONOTONIC), now) == -kFarthestDeadline);
  CHECK(RemainingOf({-5'000'000'000'000, 0, GPR_CLOCK_MONOTONIC}, now) == -kFarthestDeadline);
  const auto passed = InboundDeadline(gpr_inf_past(GPR_CLOCK_MONOTONIC), TimePoint(1h));
  REQUIRE(passed);
  CHECK(*passed < TimePoint(1h));
}

TEST_CASE("G3: a deadline is told on the asking clock") {
  const TimePoint now(50h);
  const auto deadline =
      InboundDeadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(100, GPR_TIMESPAN)), now);
  REQUIRE(deadline);
  CHECK(*deadline > now + 95s);
  CHECK(*deadline < now + 100s + 1ms);
  // One on the wall clock too.
  const auto wall =
      InboundDeadline(gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(100, GPR_TIMESPAN)), now);
  REQUIRE(wall);
  CHECK(*wall > now + 95s);
  CHECK(*wall <= now + 101s);
}

TEST_CASE("C4, G4: a pushback is a whole number of milliseconds from 0 up; anything else says stop") {
  using Kind = Pushback::Kind;
  const auto after = [](Duration wait) { return Pushback{Kind::kAfter, wait}; };
  const Pushback stop{Kind::kStop, {}};
  CHECK(ParsePushback("0") == after(0ms));
  CHECK(ParsePushback("500") == after(500ms));
  CHECK(ParsePushback("007") == after(7ms));
  CHECK(ParsePushback("2147483647") == after(2147483647ms));
  CHECK(ParsePushback("2147483648") == after(2147483648ms));
  CHECK(ParsePushback("9223372036854") == after(9223372036854ms));
  CHECK(ParsePushback("9223372036855") == after(Duration::max()));
  CHECK(ParsePushback("9223372036860") == after(Duration::max()));
  CHECK(ParsePushback("9223372036854775807") == after(Duration::max()));
  CHECK(ParsePushback("9223372036854775808") == after(Duration::max()));
  CHECK(ParsePushback("18446744073709551616") == after(Duration::max()));
  CHECK(ParsePushback("99999999999999999999") == after(Duration::max()));
  CHECK(ParsePushback(std::string(1000, '9')) == after(Duration::max()));
  for (const char* bad : {"-1", "-0", "", "abc", "1.5", "0x10", "+5", " 5", "5 ", "5ms", "1e3", "1,2",
                          "-9223372036854775808", "\xd9\xa3"}) {
    CAPTURE(bad);
    CHECK(ParsePushback(bad) == stop);
  }
  CHECK(ParsePushback("99999999999999999999x") == stop);
  CHECK(ParsePushback(std::string_view("5\0", 2)) == stop);
}

TEST_CASE("C4: no pushback is none, and one given twice says stop") {
  std::multimap<std::string, std::string> trailers{{"a", "1"}, {"z", "2"}};
  CHECK(ReadPushback(trailers) == Pushback{});
  trailers.emplace("grpc-retry-pushback-ms", "5");
  CHECK(ReadPushback(trailers) == Pushback{Pushback::Kind::kAfter, 5ms});
  trailers.emplace("grpc-retry-pushback-ms", "5");
  CHECK(ReadPushback(trailers) == Pushback{Pushback::Kind::kStop, {}});
}

TEST_CASE("C8: a code outside 0 to 16 is UNKNOWN, with its message and details") {
  for (int code = 0; code <= 16; ++code) CHECK(NormalCode(code) == code);
  for (const int code : {-1, 17, 99, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    CHECK(NormalCode(code) == grpc::StatusCode::UNKNOWN);
  }
  const grpc::Status odd = NormalStatus(grpc::Status(static_cast<grpc::StatusCode>(99), "message", "details"));
  CHECK(odd.error_code() == grpc::StatusCode::UNKNOWN);
  CHECK(odd.error_message() == "message");
  CHECK(odd.error_details() == "details");
  CHECK(NormalStatus(grpc::Status::OK).ok());
  CHECK(NormalStatus(grpc::Status(grpc::StatusCode::ABORTED, "a")).error_code() == grpc::StatusCode::ABORTED);
}
