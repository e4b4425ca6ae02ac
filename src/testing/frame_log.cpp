#include "penstock/testing/frame_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "testing/hpack.h"

namespace penstock::inline v0::testing {

namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::size_t kFrameHeader = 9;
constexpr std::uint8_t kPaddedFlag = 0x8;
constexpr std::uint8_t kPriorityFlag = 0x20;
constexpr std::string_view kUnavailable = "14";

std::uint32_t Big(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

std::string_view Name(FrameType type) {
  switch (type) {
    case FrameType::kData: return "DATA";
    case FrameType::kHeaders: return "HEADERS";
    case FrameType::kPriority: return "PRIORITY";
    case FrameType::kRstStream: return "RST_STREAM";
    case FrameType::kSettings: return "SETTINGS";
    case FrameType::kPushPromise: return "PUSH_PROMISE";
    case FrameType::kPing: return "PING";
    case FrameType::kGoaway: return "GOAWAY";
    case FrameType::kWindowUpdate: return "WINDOW_UPDATE";
    case FrameType::kContinuation: return "CONTINUATION";
  }
  return "?";
}

std::string Line(const LoggedFrame& frame, TimePoint start) {
  std::string line = fmt::format("{:10.3f} ms  connection {} {} {:<13} stream {} flags {:02x} length {}",
                                 std::chrono::duration<double, std::milli>(frame.time - start).count(), frame.connection,
                                 frame.from_server ? "<" : ">", Name(frame.type), frame.stream, frame.flags, frame.length);
  if (frame.type == FrameType::kGoaway) line += fmt::format(" last {} error {}", frame.last_stream, frame.error);
  if (frame.type == FrameType::kRstStream) line += fmt::format(" error {}", frame.error);
  if (!frame.header.empty()) line += fmt::format(" {} {}", frame.from_server ? "grpc-status" : ":path", frame.header);
  return line + '\n';
}

}  // namespace

struct FrameLog::Connection {
  struct Direction {
    std::string rest;  // a frame that is not whole yet
    bool preface = false;
    std::string block;  // of a HEADERS whose CONTINUATIONs are still to come
    LoggedFrame headers;
    detail::HpackDecoder hpack;
    std::array<std::uint64_t, 10> counts{};
  };

  std::uint16_t target = 0;
  bool open = true;
  bool broken = false;
  Direction directions[2];  // from the client, from the server
};

struct FrameLog::State {
  explicit State(FrameLogSettings from) : settings(from) {}

  bool Keeps(FrameType type) const {
    return settings.keep_all ||
           (type != FrameType::kData && type != FrameType::kPing && type != FrameType::kWindowUpdate);
  }

  void Keep(LoggedFrame frame) {
    if (frames.size() >= settings.max_frames) {
      truncated = true;
      return;
    }
    frames.push_back(std::move(frame));
  }

  // What OnBytes does with one whole frame. False on what is not HTTP/2.
  bool OnFrame(std::uint64_t id, bool from_server, Connection& connection, std::string_view header,
               std::string_view payload);
  bool OnHeaderBlock(Connection::Direction& direction);

  const Connection* Find(std::uint64_t id) const {
    const auto found = connections.find(id);
    return found == connections.end() ? nullptr : &found->second;
  }

  std::optional<bool> GoawayBeforeTrailers(std::uint64_t id) const {
    bool goaway = false;
    std::optional<bool> before;
    for (const LoggedFrame& frame : frames) {
      if (frame.connection != id || !frame.from_server) continue;
      goaway = goaway || frame.type == FrameType::kGoaway;
      if (frame.trailers() && frame.header == kUnavailable) before = before.value_or(true) && goaway;
    }
    return before;
  }

  const FrameLogSettings settings;
  mutable std::mutex mutex;
  // All guarded by mutex.
  std::map<std::uint64_t, Connection> connections;
  std::vector<LoggedFrame> frames;
  bool truncated = false;
};

bool FrameLog::State::OnFrame(std::uint64_t id, bool from_server, Connection& connection, std::string_view header,
                              std::string_view payload) {
  Connection::Direction& direction = connection.directions[from_server];
  LoggedFrame frame{.time = SteadyClock().Now(),
                    .connection = id,
                    .from_server = from_server,
                    .type = static_cast<FrameType>(header[3]),
                    .flags = static_cast<std::uint8_t>(header[4]),
                    .stream = Big(header.substr(5, 4)) & 0x7fffffffU,
                    .length = static_cast<std::uint32_t>(payload.size()),
                    .header = {}};
  const auto type = static_cast<std::size_t>(frame.type);
  if (type < direction.counts.size()) ++direction.counts[type];

  switch (frame.type) {
    case FrameType::kHeaders: {
      std::size_t padding = 0;
      if ((frame.flags & kPaddedFlag) != 0) {
        if (payload.empty()) return false;
        padding = static_cast<unsigned char>(payload.front());
        payload.remove_prefix(1);
      }
      if ((frame.flags & kPriorityFlag) != 0) {
        if (payload.size() < 5) return false;
        payload.remove_prefix(5);
      }
      if (padding > payload.size()) return false;
      payload.remove_suffix(padding);
      direction.block = payload;
      direction.headers = std::move(frame);
      return (direction.headers.flags & kEndHeadersFlag) == 0 || OnHeaderBlock(direction);
    }
    case FrameType::kContinuation:
      direction.block += payload;
      return (frame.flags & kEndHeadersFlag) == 0 || OnHeaderBlock(direction);
    case FrameType::kGoaway:
      if (payload.size() < 8) return false;
      frame.last_stream = Big(payload.substr(0, 4)) & 0x7fffffffU;
      frame.error = Big(payload.substr(4, 4));
      break;
    case FrameType::kRstStream:
      if (payload.size() != 4) return false;
      frame.error = Big(payload);
      break;
    case FrameType::kData:
    case FrameType::kPriority:
    case FrameType::kSettings:
    case FrameType::kPushPromise:
    case FrameType::kPing:
    case FrameType::kWindowUpdate:
      break;
  }
  if (Keeps(frame.type)) Keep(std::move(frame));
  return true;
}

bool FrameLog::State::OnHeaderBlock(Connection::Direction& direction) {
  detail::HeaderList headers;
  if (!direction.hpack.Decode(direction.block, headers)) return false;
  direction.block.clear();
  const std::string_view wanted = direction.headers.from_server ? "grpc-status" : ":path";
  for (auto& [name, value] : headers) {
    if (name == wanted) direction.headers.header = std::move(value);
  }
  Keep(std::move(direction.headers));
  return true;
}

FrameLog::FrameLog(FrameLogSettings settings) : state_(std::make_unique<State>(settings)) {}

FrameLog::~FrameLog() = default;

std::vector<LoggedFrame> FrameLog::frames(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  std::vector<LoggedFrame> of_it;
  for (const LoggedFrame& frame : state_->frames) {
    if (frame.connection == connection) of_it.push_back(frame);
  }
  return of_it;
}

std::vector<LoggedFrame> FrameLog::frames() const {
  std::lock_guard lock(state_->mutex);
  return state_->frames;
}

std::vector<std::uint64_t> FrameLog::connections() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, connection] : state_->connections) ids.push_back(id);
  return ids;
}

std::uint16_t FrameLog::target(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  const Connection* found = state_->Find(connection);
  return found == nullptr ? std::uint16_t{0} : found->target;
}

bool FrameLog::open(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  const Connection* found = state_->Find(connection);
  return found != nullptr && found->open;
}

bool FrameLog::broken(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  const Connection* found = state_->Find(connection);
  return found != nullptr && found->broken;
}

std::optional<bool> FrameLog::GoawayBeforeTrailers(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  return state_->GoawayBeforeTrailers(connection);
}

GoawayOrder FrameLog::goaway_order() const {
  std::lock_guard lock(state_->mutex);
  // One pass: a rollout of a minute has thousands of connections.
  struct Seen {
    bool goaway = false;
    bool ended = false;
    bool before = true;
  };
  std::map<std::uint64_t, Seen> connections;
  for (const LoggedFrame& frame : state_->frames) {
    if (!frame.from_server) continue;
    Seen& seen = connections[frame.connection];
    seen.goaway = seen.goaway || frame.type == FrameType::kGoaway;
    if (!frame.trailers() || frame.header != kUnavailable) continue;
    seen.ended = true;
    seen.before = seen.before && seen.goaway;
  }
  GoawayOrder order;
  for (const auto& [id, seen] : connections) {
    if (seen.ended) ++(seen.before ? order.goaway_first : order.trailers_first);
  }
  return order;
}

std::uint64_t FrameLog::Count(std::uint64_t connection, bool from_server, FrameType type) const {
  std::lock_guard lock(state_->mutex);
  const Connection* found = state_->Find(connection);
  return found == nullptr ? 0 : found->directions[from_server].counts.at(static_cast<std::size_t>(type));
}

std::uint64_t FrameLog::Count(FrameType type) const {
  std::lock_guard lock(state_->mutex);
  std::uint64_t count = 0;
  for (const auto& [id, connection] : state_->connections) {
    for (const auto& direction : connection.directions) count += direction.counts.at(static_cast<std::size_t>(type));
  }
  return count;
}

bool FrameLog::truncated() const {
  std::lock_guard lock(state_->mutex);
  return state_->truncated;
}

void FrameLog::Clear() {
  std::lock_guard lock(state_->mutex);
  state_->frames.clear();
  state_->truncated = false;
  // Live connections keep their decoders, which must see every header block of theirs.
  std::erase_if(state_->connections, [](const auto& entry) { return !entry.second.open; });
  for (auto& [id, connection] : state_->connections) {
    for (auto& direction : connection.directions) direction.counts.fill(0);
  }
}

std::string FrameLog::Dump() const {
  std::lock_guard lock(state_->mutex);
  std::string text;
  for (const LoggedFrame& frame : state_->frames) text += Line(frame, state_->frames.front().time);
  return text;
}

std::string FrameLog::Dump(std::uint64_t connection) const {
  std::lock_guard lock(state_->mutex);
  std::string text;
  for (const LoggedFrame& frame : state_->frames) {
    if (frame.connection == connection) text += Line(frame, state_->frames.front().time);
  }
  return text;
}

void FrameLog::OnOpened(std::uint64_t connection, std::uint16_t target) {
  std::lock_guard lock(state_->mutex);
  state_->connections[connection].target = target;
}

void FrameLog::OnBytes(std::uint64_t id, bool from_server, std::string_view bytes) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->connections.find(id);
  if (found == state_->connections.end() || found->second.broken) return;
  Connection& connection = found->second;
  Connection::Direction& direction = connection.directions[from_server];
  direction.rest.append(bytes);
  std::string_view rest = direction.rest;
  if (!from_server && !direction.preface) {
    const std::size_t length = std::min(rest.size(), kPreface.size());
    if (rest.substr(0, length) != kPreface.substr(0, length)) {
      connection.broken = true;
      direction.rest.clear();
      return;
    }
    if (length < kPreface.size()) return;
    direction.preface = true;
    rest.remove_prefix(kPreface.size());
  }
  while (rest.size() >= kFrameHeader) {
    const std::size_t length = Big(rest.substr(0, 3));
    if (rest.size() < kFrameHeader + length) break;
    if (!state_->OnFrame(id, from_server, connection, rest.substr(0, kFrameHeader), rest.substr(kFrameHeader, length))) {
      connection.broken = true;
      direction.rest.clear();
      return;
    }
    rest.remove_prefix(kFrameHeader + length);
  }
  direction.rest.erase(0, direction.rest.size() - rest.size());
}

void FrameLog::OnClosed(std::uint64_t connection) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->connections.find(connection);
  if (found != state_->connections.end()) found->second.open = false;
}

}  // namespace penstock::inline v0::testing
