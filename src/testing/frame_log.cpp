#include "penstock/testing/frame_log.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "testing/frame_reader.h"

namespace penstock::inline v0::testing {

namespace {

constexpr std::string_view kUnavailable = "14";

// The first four bytes as a number.
std::uint32_t Big(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(c);
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

// Whether a connection's GOAWAY went before the trailers of every stream that its server ended with UNAVAILABLE.
struct Judgement {
  bool goaway = false;
  bool ended = false;
  bool before = true;

  // Each of its frames, in their order.
  void See(const LoggedFrame& frame) {
    if (!frame.from_server) return;
    goaway = goaway || frame.type == FrameType::kGoaway;
    if (!frame.trailers() || frame.header != kUnavailable) return;
    ended = true;
    before = before && goaway;
  }
};

}  // namespace

struct FrameLog::Connection {
  struct Direction {
    explicit Direction(bool preface_first) : reader(preface_first) {}

    detail::FrameReader reader;
    std::array<std::uint64_t, 10> counts{};
  };

  std::uint16_t target = 0;
  bool open = true;
  bool broken = false;
  Direction directions[2] = {Direction(true), Direction(false)};  // from the client, from the server
};

struct FrameLog::State {
  explicit State(FrameLogSettings from) : settings(from) {}

  bool Keeps(FrameType type) const {
    return settings.keep_all ||
           (type != FrameType::kData && type != FrameType::kPing && type != FrameType::kWindowUpdate);
  }

  void OnFrame(std::uint64_t id, bool from_server, Connection& connection, detail::ReadFrame& read);

  const Connection* Find(std::uint64_t id) const {
    const auto found = connections.find(id);
    return found == connections.end() ? nullptr : &found->second;
  }

  const FrameLogSettings settings;
  mutable std::mutex mutex;
  // All guarded by mutex.
  std::map<std::uint64_t, Connection> connections;
  std::uint64_t last_connection = 0;
  std::vector<LoggedFrame> frames;
  bool truncated = false;
};

void FrameLog::State::OnFrame(std::uint64_t id, bool from_server, Connection& connection, detail::ReadFrame& read) {
  const auto type = static_cast<std::size_t>(read.type);
  auto& counts = connection.directions[from_server].counts;
  if (type < counts.size()) ++counts[type];
  if (!Keeps(read.type)) return;

  LoggedFrame frame{.time = SteadyClock().Now(),
                    .connection = id,
                    .from_server = from_server,
                    .type = read.type,
                    .flags = read.flags,
                    .stream = read.stream,
                    .length = static_cast<std::uint32_t>(read.length),
                    .header = {}};
  if (read.type == FrameType::kGoaway) {
    frame.last_stream = Big(read.payload) & 0x7fffffffU;
    frame.error = Big(read.payload.substr(4));
  }
  if (read.type == FrameType::kRstStream) frame.error = Big(read.payload);
  const std::string_view wanted = from_server ? "grpc-status" : ":path";
  for (auto& [name, value] : read.headers) {
    if (name == wanted) frame.header = std::move(value);
  }
  if (frames.size() < settings.max_frames) {
    frames.push_back(std::move(frame));
  } else {
    truncated = true;
  }
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
  Judgement judgement;
  for (const LoggedFrame& frame : state_->frames) {
    if (frame.connection == connection) judgement.See(frame);
  }
  return judgement.ended ? std::optional(judgement.before) : std::nullopt;
}

GoawayOrder FrameLog::goaway_order() const {
  std::lock_guard lock(state_->mutex);
  // One pass: a rollout of a minute has thousands of connections.
  std::map<std::uint64_t, Judgement> connections;
  for (const LoggedFrame& frame : state_->frames) connections[frame.connection].See(frame);
  GoawayOrder order;
  for (const auto& [id, judgement] : connections) {
    if (judgement.ended) ++(judgement.before ? order.goaway_first : order.trailers_first);
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

std::uint64_t FrameLog::OnOpened(std::uint16_t target) {
  std::lock_guard lock(state_->mutex);
  const std::uint64_t connection = ++state_->last_connection;
  state_->connections[connection].target = target;
  return connection;
}

void FrameLog::OnBytes(std::uint64_t id, bool from_server, std::string_view bytes) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->connections.find(id);
  if (found == state_->connections.end() || found->second.broken) return;
  Connection& connection = found->second;
  detail::FrameReader& reader = connection.directions[from_server].reader;
  reader.Feed(bytes);
  detail::ReadFrame frame;
  for (;;) {
    switch (reader.Next(frame)) {
      case detail::FrameReader::Got::kFrame:
        state_->OnFrame(id, from_server, connection, frame);
        break;
      case detail::FrameReader::Got::kBroken:
        connection.broken = true;
        return;
      case detail::FrameReader::Got::kNothing:
        return;
    }
  }
}

void FrameLog::OnClosed(std::uint64_t connection) {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->connections.find(connection);
  if (found != state_->connections.end()) found->second.open = false;
}

}  // namespace penstock::inline v0::testing
