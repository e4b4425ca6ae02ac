#include "lab/peers/cpp/work.h"

#include <charconv>
#include <chrono>
#include <thread>

#include "google/rpc/error_info.pb.h"
#include "runtime/status_name.h"

namespace penstock::lab {

void Memory::Saw(const std::string& layer, grpc::StatusCode code) {
  std::lock_guard lock(mutex_);
  ++seen_[layer + ":" + NameOf(code)];
}

v1::Tally Memory::Of(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto found = tallies_.find(key);
  v1::Tally tally = found != tallies_.end() ? found->second : v1::Tally();
  tally.mutable_seen()->insert(seen_.begin(), seen_.end());
  return tally;
}

std::string NameOf(grpc::StatusCode code) { return std::string(detail::StatusName(code)); }

int Begin(Memory& memory, const v1::Work& work, const grpc::CallbackServerContext& context) {
  const auto header = context.client_metadata().find("grpc-previous-rpc-attempts");
  int before = 0;
  memory.Change(work.key(), [&](v1::Tally& tally) {
    before = tally.calls();
    tally.set_calls(before + 1);
    int number = 0;
    if (header != context.client_metadata().end() && std::from_chars(header->second.begin(), header->second.end(), number).ec == std::errc()) {
      tally.add_previous_attempts(number);
    }
  });
  return before;
}

grpc::Status EndOf(const v1::Work& work, int before) {
  if (work.code() == 0 || (work.fail_first() > 0 && before >= work.fail_first())) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(work.code());
  if (!work.details()) return {code, work.message()};
  google::rpc::ErrorInfo info;
  info.set_reason("RECORD_NOT_FOUND");
  info.set_domain("lab.penstock");
  google::rpc::Status status;
  status.set_code(work.code());
  status.set_message(work.message());
  status.add_details()->PackFrom(info);
  return {code, work.message(), status.SerializeAsString()};
}

bool TakeSteps(Memory& memory, const v1::Work& work, int steps, const std::function<bool()>& cancelled,
               const std::function<void(int)>& step) {
  for (int i = 0; i < steps; ++i) {
    const bool gone = cancelled();
    if (gone && !work.unchecked()) {
      memory.Change(work.key(), [](v1::Tally& tally) { tally.set_stopped(tally.stopped() + 1); });
      return false;
    }
    memory.Change(work.key(), [&](v1::Tally& tally) {
      tally.set_steps(tally.steps() + 1);
      if (gone) tally.set_steps_after_cancel(tally.steps_after_cancel() + 1);
    });
    step(i);
  }
  memory.Change(work.key(), [](v1::Tally& tally) { tally.set_completed(tally.completed() + 1); });
  return true;
}

grpc::Status DoWork(Memory& memory, const v1::Work& work, int before, const std::string& server,
                    const std::function<bool()>& cancelled, v1::Answer& answer) {
  const auto step = [&](int) { std::this_thread::sleep_for(std::chrono::milliseconds(work.step_ms())); };
  if (!TakeSteps(memory, work, work.steps(), cancelled, step)) return {grpc::StatusCode::CANCELLED, "stopped"};
  answer.set_server(server);
  answer.set_payload(std::string(static_cast<std::size_t>(work.reply_bytes()), 'x'));
  return EndOf(work, before);
}

std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return {};
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return {};
}

}  // namespace penstock::lab
