#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "penstock/runtime/call_scope.h"
#include "runtime/baggage.h"
#include "runtime/relay.h"
#include "runtime/trace_context.h"
#include "support/percent.h"

using namespace penstock;
using namespace penstock::detail;

namespace {

constexpr std::string_view kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string With(std::size_t at, std::string_view text) {
  std::string header(kGood);
  return header.replace(at, text.size(), text);
}

// `count` members of baggage, each of `value` bytes of value.
std::string Members(int count, std::size_t value = 1) {
  std::string header;
  for (int i = 0; i < count; ++i) {
    if (i > 0) header += ',';
    header += "k" + std::to_string(i) + "=" + std::string(value, 'v');
  }
  return header;
}

int CountOf(std::string_view header) {
  int members = 0;
  ForEachBaggageMember(header, [&](const BaggageMember&) { ++members; });
  return members;
}

}  // namespace

TEST_CASE("O3: a traceparent to the letter is read and written back as it was") {
  const auto parent = ParseTraceparent(kGood);
  REQUIRE(parent.has_value());
  CHECK(parent->trace_id[0] == 0x0a);
  CHECK(parent->trace_id[15] == 0x9c);
  CHECK(parent->span_id[0] == 0xb7);
  CHECK((parent->flags & 1) == 1);
  CHECK(FormatTraceparent(*parent) == kGood);
  CHECK(ParseTraceparent(With(53, "00"))->flags == 0);
  CHECK(ParseTraceparent(With(53, "ff"))->flags == 0xff);
}

TEST_CASE("O3: a traceparent that is not to the letter is none") {
  struct Case {
    std::string_view why;
    std::string header;
  };
  const std::vector<Case> cases = {
      {"empty", ""},
      {"version ff", With(0, "ff")},
      {"version in upper case", With(0, "0A")},
      {"version of no hex", With(0, "0g")},
      {"trace id in upper case", With(3, "0AF7")},
      {"span id in upper case", With(36, "B7")},
      {"flags in upper case", With(53, "0A")},
      {"trace id all zero", With(3, std::string(32, '0'))},
      {"span id all zero", With(36, std::string(16, '0'))},
      {"a space in the trace id", With(10, " ")},
      {"a first separator missing", With(2, "0")},
      {"a second separator missing", With(35, "0")},
      {"a third separator missing", With(52, "0")},
      {"one character short", std::string(kGood.substr(0, 54))},
      {"version 00 with more behind", std::string(kGood) + "-00"},
      {"version 00 with one character more", std::string(kGood) + "0"},
      {"version 01 with more and no dash", With(0, "01") + "x"},
      {"white space in front", " " + std::string(kGood)},
      {"white space behind", std::string(kGood) + " "},
      {"two in one header", std::string(kGood) + "," + std::string(kGood)},
      {"a sign in a hex pair", With(53, "+1")},
      {"NUL in a hex pair", With(53, std::string_view("\0"
                                                      "1",
                                                      2))},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.why);
    CHECK_FALSE(ParseTraceparent(bad.header).has_value());
  }
}

TEST_CASE("O3: a traceparent of a higher version is read as far as version 00 goes") {
  CHECK(ParseTraceparent(With(0, "01")).has_value());
  CHECK(ParseTraceparent(With(0, "fe")).has_value());
  const auto extended = ParseTraceparent(With(0, "01") + "-what-the-future-holds");
  REQUIRE(extended.has_value());
  CHECK(FormatTraceparent(*extended) == kGood);
  std::string unknown_flags = With(0, "01");
  unknown_flags.replace(53, 2, "0b");
  CHECK(ParseTraceparent(unknown_flags)->flags == 1);
}

TEST_CASE("O3: tracestate keeps its order over several headers, and drops empty members and white space") {
  CHECK(CombineTracestate({}) == "");
  CHECK(CombineTracestate({""}) == "");
  CHECK(CombineTracestate({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}) == "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  CHECK(CombineTracestate({"a=1", "b=2,c=3"}) == "a=1,b=2,c=3");
  CHECK(CombineTracestate({" a=1 ,\t,, b=2\t"}) == "a=1,b=2");
  CHECK(CombineTracestate({"fw529a3039@dt=FfVkL, 1t@a=x y"}) == "fw529a3039@dt=FfVkL,1t@a=x y");
  CHECK(CombineTracestate({"a_-*/9=!~"}) == "a_-*/9=!~");
}

TEST_CASE("O3: a tracestate with one malformed member is dropped whole") {
  const std::vector<std::string> cases = {"a=1,b",
                                          "=1",
                                          "a=",
                                          "A=1",
                                          "_a=1",
                                          "a b=1",
                                          "a=1=2",
                                          "a=b\x7f",
                                          "a=b\tc,d=e",
                                          "a=1,a=2",
                                          "@a=1",
                                          "aB=1",
                                          "1" + std::string(256, 'a') + "=1",
                                          "a=" + std::string(257, 'b'),
                                          "a=\xff"};
  for (const std::string& bad : cases) {
    CAPTURE(bad);
    CHECK(CombineTracestate({bad}) == "");
    CHECK(CombineTracestate({"good=1", bad}) == "");
  }
  CHECK(CombineTracestate({std::string(256, 'a') + "=1"}).size() == 258);
  CHECK(CombineTracestate({std::string(241, 'a') + "@" + std::string(14, 'b') + "=1"}).size() == 258);
  // Level 2: a digit may come first, and an @ anywhere behind it.
  for (const char* good : {"1a=1", "1=1", "a@=1", "a@1b=1", "a@b@c=1"}) CHECK(CombineTracestate({good}) == good);
  CHECK(CombineTracestate({"a@" + std::string(254, 'b') + "=1"}).size() == 258);
}

TEST_CASE(
    "O3: 32 members of tracestate pass, the 33rd drops them all; too long a list loses its long and last members") {
  std::string list;
  for (int i = 0; i < 32; ++i) list += (i == 0 ? "k" : ",k") + std::to_string(i) + "=v";
  CHECK(CombineTracestate({list}) == list);
  CHECK(CombineTracestate({list, "k32=v"}) == "");

  const std::string longer = "b=" + std::string(200, 'x');
  CHECK(CombineTracestate({"a=1", longer, "c=3"}, 20) == "a=1,c=3");
  CHECK(CombineTracestate({"a=1", "b=2", "c=3"}, 7) == "a=1,b=2");
  CHECK(CombineTracestate({"a=1", "b=2", "c=3"}, 11) == "a=1,b=2,c=3");
  CHECK(CombineTracestate({"a=1", "b=2", "c=3"}, 2) == "");
}

TEST_CASE("O3: baggage passes on as it came, character by character") {
  for (const std::string header : {"a=b+c", "a=%3D", "a=x:y", "a=b=c", "a=%20;p=1;q", "a=1;p = 2", "a = 1", "a="}) {
    CAPTURE(header);
    std::string hop = header;
    for (int i = 0; i < 3; ++i) hop = CombineBaggage({hop});
    CHECK(hop == header);
  }
  CHECK(CombineBaggage({"a=1", "b=2,c=3"}) == "a=1,b=2,c=3");
  CHECK(CombineBaggage({" a=1 ,\t,b=2\t"}) == "a=1,b=2");
}

TEST_CASE("G1: a member of baggage that metadata cannot carry is dropped, the others stay") {
  const std::vector<std::string> cases = {
      "b",    "=1",      "b=\"1\"", "b=1 2", "b=1\\2",      "b=\xff", "b=\x01", "b=1\n",
      "b=1;", "b=1;p q", "b\t=\t1", "b c=1", "b=1;p=\"x\"", "(b)=1",  "b=1;=2", std::string("b=\0", 3)};
  for (const std::string& bad : cases) {
    CAPTURE(bad);
    CHECK(CombineBaggage({"a=1," + bad + ",c=3"}) == "a=1,c=3");
  }
}

TEST_CASE("O3: of 181 members of baggage the first 64 are kept, and no more than 8,192 bytes") {
  const std::string kept = CombineBaggage({Members(181)});
  CHECK(CountOf(kept) == 64);
  CHECK(kept == Members(64));

  const std::string full = "a=" + std::string(8190, 'x');
  CHECK(CombineBaggage({full}).size() == 8192);
  CHECK(CombineBaggage({"a=" + std::string(8191, 'x')}) == "");
  CHECK(CombineBaggage({"a=1," + full + ",c=3"}) == "a=1,c=3");
  CHECK(CombineBaggage({Members(64, 200)}).size() <= 8192);
}

TEST_CASE("F3: one key is taken out of the baggage and the rest stays as it was") {
  CHECK(WithoutBaggageMember("a=b+c,penstock.fault=x;p=1,d=%3D", "penstock.fault") == "a=b+c,d=%3D");
  CHECK(WithoutBaggageMember("penstock.fault=x", "penstock.fault") == "");
  CHECK(WithoutBaggageMember("penstock.faults=x,a=penstock.fault", "penstock.fault") ==
        "penstock.faults=x,a=penstock.fault");
}

TEST_CASE("F1: what is percent-encoded decodes to the bytes that it was") {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string encoded = test::PercentEncoded(bytes);
  CHECK(PercentDecoded(encoded) == bytes);
  CHECK(ParseBaggageMember("k=" + encoded).has_value());
  CHECK(PercentDecoded("a%2fB+%2F") == "a/B+/");
  CHECK_FALSE(PercentDecoded("%").has_value());
  CHECK_FALSE(PercentDecoded("a%2").has_value());
  CHECK_FALSE(PercentDecoded("%zz").has_value());
}

TEST_CASE("G1: a scope drops what gRPC could not send, whoever made it") {
  const auto scope = CallScope::Create(TimePoint::max(), {{"baggage", "a\tb"},
                                                          {"Baggage", "a=b"},
                                                          {"", "a=b"},
                                                          {"grpc-timeout", "1S"},
                                                          {"traceparent", std::string(kGood)},
                                                          {"tracestate", "a=\xff"}});
  CHECK(scope->relayed() == CallScope::Metadata{{"traceparent", std::string(kGood)}});
}

TEST_CASE("L10: trace, trace state and baggage are relayed, one header each, and nothing else is") {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const std::string good(kGood);
  const InboundMetadata headers = {{"traceparent", good.c_str()}, {"tracestate", "a=1"},
                                   {"tracestate", "b=2"},         {"baggage", "x=1"},
                                   {"baggage", "y=a%20b"},        {"authorization", "secret"}};
  CHECK(RelayedMetadata(headers) ==
        Pairs{{"traceparent", good}, {"tracestate", "a=1,b=2"}, {"baggage", "x=1,y=a%20b"}});
  CHECK(RelayedMetadata({}) == Pairs{});
  CHECK(RelayedMetadata({{"baggage", "\xff"}}) == Pairs{});
}

TEST_CASE("O3: two traceparents, or a malformed one, relay no trace and no trace state") {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const std::string good(kGood);
  CHECK(RelayedMetadata({{"traceparent", good.c_str()}, {"traceparent", good.c_str()}, {"tracestate", "a=1"}}) ==
        Pairs{});
  CHECK(RelayedMetadata({{"traceparent", "00-x"}, {"tracestate", "a=1"}, {"baggage", "x=1"}}) ==
        Pairs{{"baggage", "x=1"}});
  CHECK(RelayedMetadata({{"tracestate", "a=1"}}) == Pairs{});
  CHECK(RelayedMetadata({{"traceparent", good.c_str()}, {"tracestate", "A"}}) == Pairs{{"traceparent", good}});
}
