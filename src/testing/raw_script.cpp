#include "penstock/testing/raw_peer.h"

#include <utility>

namespace penstock::inline v0::testing {

namespace {

RawHeaders WithStatus(std::string_view status, std::string_view message, RawHeaders more) {
  RawHeaders trailers{{"grpc-status", std::string(status)}};
  if (!message.empty()) trailers.emplace_back("grpc-message", message);
  trailers.insert(trailers.end(), more.begin(), more.end());
  return trailers;
}

RawHeaders WithStart(RawHeaders more) {
  RawHeaders headers{{":status", "200"}, {"content-type", "application/grpc"}};
  headers.insert(headers.end(), more.begin(), more.end());
  return headers;
}

}  // namespace

RawScript RawScript::Ok(std::string_view message, RawHeaders trailers) {
  RawScript script;
  script.AwaitEnd().Headers().Message(message).Status(0, {}, std::move(trailers));
  return script;
}

RawScript RawScript::Fail(int status, std::string_view message, RawHeaders trailers) {
  RawScript script;
  script.AwaitEnd().TrailersOnly(status, message, std::move(trailers));
  return script;
}

RawScript& RawScript::Headers(RawHeaders more) {
  return Frame(HeadersFrame(kThisStream, WithStart(std::move(more))));
}

RawScript& RawScript::Message(std::string_view serialized) { return Data(GrpcMessage(serialized)); }

RawScript& RawScript::Data(std::string bytes, bool end_stream) {
  return Frame(DataFrame(kThisStream, std::move(bytes), end_stream));
}

RawScript& RawScript::Trailers(RawHeaders trailers) { return Frame(HeadersFrame(kThisStream, trailers, true)); }

RawScript& RawScript::Status(std::string_view status, std::string_view message, RawHeaders more) {
  return Trailers(WithStatus(status, message, std::move(more)));
}

RawScript& RawScript::Status(int status, std::string_view message, RawHeaders more) {
  return Status(std::to_string(status), message, std::move(more));
}

RawScript& RawScript::TrailersOnly(std::string_view status, std::string_view message, RawHeaders more) {
  return Trailers(WithStart(WithStatus(status, message, std::move(more))));
}

RawScript& RawScript::TrailersOnly(int status, std::string_view message, RawHeaders more) {
  return TrailersOnly(std::to_string(status), message, std::move(more));
}

RawScript& RawScript::Reset(std::uint32_t error) { return Frame(RstStreamFrame(kThisStream, error)); }

RawScript& RawScript::Goaway(std::uint32_t last_stream, std::uint32_t error, std::string_view debug) {
  return Frame(GoawayFrame(last_stream, error, debug));
}

RawScript& RawScript::Frame(RawFrame frame) { return Add(Send{std::move(frame)}); }

RawScript& RawScript::Bytes(std::string bytes) { return Add(SendBytes{std::move(bytes)}); }

RawScript& RawScript::AwaitEnd() { return Add(UntilEnd{}); }

RawScript& RawScript::AwaitMessages(std::size_t count) { return Add(UntilMessages{count}); }

RawScript& RawScript::Wait(Duration length) { return Add(Pause{length}); }

RawScript& RawScript::AwaitSignal() { return Add(UntilSignal{}); }

RawScript& RawScript::Close() { return Add(CloseConnection{.reset = false}); }

RawScript& RawScript::ResetConnection() { return Add(CloseConnection{.reset = true}); }

RawScript& RawScript::Add(Step step) {
  steps_.push_back(std::move(step));
  return *this;
}

}  // namespace penstock::inline v0::testing
