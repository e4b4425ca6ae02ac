#pragma once

// The two ways that are compared: pods and a caller with penstock, and both as they are commonly written.
//
// Threads: a Caller's members by one thread; it counts into the Figures from any.
// Ownership: figures and store outlive pods and callers.

#include <cstdint>
#include <memory>
#include <string>

#include "figures.h"
#include "penstock/testing/pods.h"
#include "store.h"

namespace rollout {

class Caller {
 public:
  virtual ~Caller() = default;
  // Keeps so many watches open from now on.
  virtual void Watch(int streams) = 0;
  // Makes one unary call: nine of ten read an account, the tenth moves money.
  virtual void Call(std::uint64_t number) = 0;
  virtual const char* breaker_state() const = 0;
  // Ends every watch and every call, and waits until each has ended.
  virtual void Stop() = 0;
};

penstock::Result<std::unique_ptr<penstock::testing::Pod>> MakePenstockPod(Store& store, Figures& figures);
std::unique_ptr<Caller> MakePenstockCaller(const std::string& address, int connections, Figures& figures);

penstock::Result<std::unique_ptr<penstock::testing::Pod>> MakeNaivePod(Store& store, Figures& figures);
// Without a breaker, no call is turned away and no stream given up.
std::unique_ptr<Caller> MakeNaiveCaller(const std::string& address, bool breaker, Figures& figures);

}  // namespace rollout
