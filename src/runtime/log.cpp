#include "log.h"

#include <cstdio>
#include <memory>
#include <mutex>

#include "penstock/runtime/callback_thread.h"

namespace penstock::inline v0 {

namespace {

struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

SinkHolder& Holder() {
  static SinkHolder& holder = *new SinkHolder;  // read by threads that outlive main()
  return holder;
}

const char* Name(LogSeverity severity) noexcept {
  switch (severity) {
    case LogSeverity::kInfo: return "info";
    case LogSeverity::kWarning: return "warning";
    case LogSeverity::kError: return "error";
  }
  return "error";
}

}  // namespace

void SetLogSink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  std::lock_guard lock(Holder().mutex);
  Holder().sink.swap(shared);
}

namespace detail {

void LogLine(LogSeverity severity, const std::string& line) noexcept {
  std::shared_ptr<const LogSink> sink;
  {
    std::lock_guard lock(Holder().mutex);
    sink = Holder().sink;
  }
  if (!sink) {
    std::fprintf(stderr, "penstock %s: %s\n", Name(severity), line.c_str());
    return;
  }
  try {
    UserCodeScope in_user_code;
    (*sink)(severity, line);
  } catch (...) {
    // The header says so: what a sink throws is dropped.
  }
}

}  // namespace detail
}  // namespace penstock::inline v0
