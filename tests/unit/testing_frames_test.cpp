#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "penstock/testing/frame_log.h"
#include "penstock/testing/raw_frame.h"
#include "testing/frame_reader.h"

using namespace penstock::testing;

namespace {

std::string Stream(std::uint32_t id, const char* status) {
  return Encode(HeadersFrame(id, {{":status", "200"}})) + Encode(DataFrame(id, GrpcMessage("x"))) +
         Encode(HeadersFrame(id, {{"grpc-status", status}}, true));
}

std::shared_ptr<FrameLog> LogOf(const std::string& from_server, FrameLogSettings settings = {}) {
  auto log = std::make_shared<FrameLog>(settings);
  REQUIRE(log->OnOpened(4711) == 1);
  log->OnBytes(1, true, from_server);
  return log;
}

}  // namespace

TEST_CASE("X2: frames come out the same however their bytes are cut") {
  const std::string bytes = std::string(kHttp2Preface) + Encode(SettingsFrame({{4, 65'535}})) +
                            Encode(HeadersFrame(1, {{":path", "/a/B"}, {"big", std::string(40'000, 'b')}})) +
                            Encode(DataFrame(1, std::string(20'000, 'd'), true)) + Encode(GoawayFrame(1, 2, "why"));
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    detail::FrameReader reader(true);
    std::vector<FrameType> types;
    std::size_t data = 0;
    detail::ReadFrame frame;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      reader.Feed(std::string_view(bytes).substr(at, step));
      while (reader.Next(frame) == detail::FrameReader::Got::kFrame) {
        types.push_back(frame.type);
        if (frame.type == FrameType::kData) data += frame.payload.size();
        if (frame.type == FrameType::kHeaders) CHECK(FindHeader(frame.headers, "big")->size() == 40'000);
        if (frame.type == FrameType::kGoaway) CHECK(frame.payload.substr(8) == "why");
      }
    }
    CHECK(types == std::vector{FrameType::kSettings, FrameType::kHeaders, FrameType::kData, FrameType::kData,
                               FrameType::kGoaway});
    CHECK(data == 20'000);
  }
}

TEST_CASE("G6: random bytes never trip the reader") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string good = Stream(1, "0") + Encode(GoawayFrame(1)) + Encode(PingFrame("12345678"));
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    detail::FrameReader reader(round % 2 == 0);
    reader.Feed(bytes);
    detail::ReadFrame frame;
    int frames = 0;
    while (reader.Next(frame) == detail::FrameReader::Got::kFrame) ++frames;
    CHECK(frames <= 5);
  }
}

TEST_CASE("V3: the order of GOAWAY and trailers is told for the streams that a shutdown ended, and for no others") {
  const std::string goaway = Encode(GoawayFrame(0x7fffffff));
  CHECK(LogOf(goaway + Stream(1, "14"))->GoawayBeforeTrailers(1) == true);
  CHECK(LogOf(Stream(1, "14") + goaway)->GoawayBeforeTrailers(1) == false);
  CHECK(LogOf(Stream(1, "14"))->GoawayBeforeTrailers(1) == false);
  CHECK(LogOf(goaway + Stream(1, "14") + Stream(3, "14"))->GoawayBeforeTrailers(1) == true);
  CHECK(LogOf(Stream(1, "14") + goaway + Stream(3, "14"))->GoawayBeforeTrailers(1) == false);
  CHECK(LogOf(Stream(1, "0") + goaway + Stream(3, "14"))->GoawayBeforeTrailers(1) == true);
  CHECK_FALSE(LogOf(Stream(1, "0") + goaway)->GoawayBeforeTrailers(1).has_value());
  CHECK_FALSE(LogOf("")->GoawayBeforeTrailers(99).has_value());
  CHECK(LogOf(Stream(1, "14") + goaway)->goaway_order().trailers_first == 1);
}

TEST_CASE("X2: the log is bounded, counts what it does not keep, and says where a connection is not HTTP/2") {
  const auto log = LogOf(Stream(1, "0") + Stream(3, "0"), {.max_frames = 3});
  CHECK(log->frames().size() == 3);
  CHECK(log->truncated());
  CHECK(log->Count(1, true, FrameType::kHeaders) == 4);
  CHECK(log->Count(FrameType::kData) == 2);
  CHECK(log->Dump(1).find("grpc-status 0") != std::string::npos);
  CHECK_FALSE(log->broken(1));
  log->OnBytes(1, false, "GET / HTTP/1.1");
  CHECK(log->broken(1));
  log->OnClosed(1);
  CHECK_FALSE(log->open(1));
  log->Clear();
  CHECK(log->connections().empty());
  CHECK_FALSE(log->truncated());
  CHECK(LogOf(Stream(1, "0"), {.keep_all = true})->frames(1).size() == 3);
}
