#pragma once

// Echo pods for testing::Service, in this process or in processes of their own. A process of its own is the test program
// itself: its main() looks for `--pod` first (support/main.cpp).
//
//     auto service = testing::Service::Create({.make_pod = EchoPods({.own_process = true, .drain_ms = 100})});
//
// Pods answer with their names, "pod-0", "pod-1", … in the order of their start.

#include <cstddef>
#include <functional>
#include <memory>

#include "penstock/core/result.h"
#include "penstock/testing/pods.h"

namespace penstock::test {

struct EchoPodOptions {
  bool own_process = false;
  // On a plain grpc::Server, which shuts down by gRPC's own means within grace_ms; only with own_process. It serves
  // EchoService, the others serve GuardedEcho.
  bool plain = false;
  int drain_ms = 0;
  int grace_ms = 5'000;
};

std::function<Result<std::unique_ptr<testing::Pod>>(std::size_t)> EchoPods(EchoPodOptions options = {});

// What main() runs instead of the tests: NAME penstock|plain DRAIN_MS GRACE_MS. Weak there, so that other test programs do
// without.
int PodMain(int argc, char** argv);

}  // namespace penstock::test
