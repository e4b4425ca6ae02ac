#pragma once

// What the two C++ servers of the lab do alike: a call's work, and the tallies of it (proto/penstock/lab/v1/lab.proto).
//
// Threads: every member may be called from any thread; DoWork blocks as long as the work takes.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "penstock/lab/v1/lab.pb.h"

namespace penstock::lab {

class Memory {
 public:
  void Change(const std::string& key, const std::function<void(v1::Tally&)>& change) {
    std::lock_guard lock(mutex_);
    change(tallies_[key]);
  }
  void Saw(const std::string& layer, grpc::StatusCode code);
  v1::Tally Of(const std::string& key) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, v1::Tally> tallies_;
  std::map<std::string, int> seen_;
};

// "OK", "UNAVAILABLE", …
std::string NameOf(grpc::StatusCode code);

// Counts the handler, and how many calls had begun before it with this key.
int Begin(Memory& memory, const v1::Work& work, const grpc::CallbackServerContext& context);

// What the call ends with; `before` is what Begin gave.
grpc::Status EndOf(const v1::Work& work, int before);

// The steps: true when all were done, false when it left because `cancelled()`. `step(i)` does the i'th.
bool TakeSteps(Memory& memory, const v1::Work& work, int steps, const std::function<bool()>& cancelled,
               const std::function<void(int)>& step);

// All of a unary call's.
grpc::Status DoWork(Memory& memory, const v1::Work& work, int before, const std::string& server,
                    const std::function<bool()>& cancelled, v1::Answer& answer);

// ErrorInfo.reason of a status's details; empty when there is none.
std::string ReasonOf(const grpc::Status& status);

}  // namespace penstock::lab
