#pragma once

// What a server call hands down to the calls that are made for it: its deadline, its cancellation, its trace and baggage.
//
// A call that a handler makes must end when the handler's own call is cancelled or finished, but must not touch that
// call's gRPC context, which dies with it. Both sides hold a CallScope instead.
//
//     auto scope = CallScope::Create(deadline, {{"baggage", "tenant=7"}});      // the server, as the call comes in
//     if (!scope->Attach(listener)) return Cancelled();                         // a child, as it starts
//     scope->End(CallScope::Ending::kFinished);                                 // the server, as the call ends
//
// Threads: every member may be called from any thread.
// Ownership: shared; a listener stays its owner's, who keeps it alive until Detach() has returned true or
// OnScopeEnded() has returned.
// Time: the deadline is a point on the clock of the server that made the scope.
// Errors: none.

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/clock.h"

namespace penstock::inline v0 {

class CallScope {
 public:
  enum class Ending { kFinished, kCancelled };

  // Metadata as it goes over the wire, keys in lower case.
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  class Listener {
   public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Once, on the thread that ends the scope, without any lock held. Must not block and must not run user code.
    virtual void OnScopeEnded(Ending ending) noexcept = 0;

   protected:
    ~Listener() = default;

   private:
    friend class CallScope;
    Listener* previous_ = nullptr;
    Listener* next_ = nullptr;
    bool attached_ = false;
  };

  // TimePoint::max() says that there is no deadline. `relayed` are the headers to send with every child (traceparent,
  // tracestate, baggage); one that gRPC could not send is dropped.
  static std::shared_ptr<CallScope> Create(TimePoint deadline, Metadata relayed);

  CallScope(TimePoint deadline, Metadata relayed);
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  TimePoint deadline() const noexcept { return deadline_; }
  const Metadata& relayed() const noexcept { return relayed_; }
  bool ended() const noexcept;

  // False when the scope has ended already; the listener is then not told.
  bool Attach(Listener& listener) noexcept;

  // True when the listener was attached and will not be told. False when it was told, is being told, or never attached.
  bool Detach(Listener& listener) noexcept;

  // Tells every listener once. Later calls do nothing.
  void End(Ending ending) noexcept;

 private:
  void Unlink(Listener& listener) noexcept;

  const TimePoint deadline_;
  const Metadata relayed_;
  mutable std::mutex mutex_;
  bool ended_ = false;
  Listener* first_ = nullptr;
};

// What a server's context is too where the server keeps scopes, so that a client, which knows of no server, finds the scope
// of the call that it is made for: dynamic_cast<const ScopeOwner*>(context).
class ScopeOwner {
 public:
  // Never null; may have ended already. Any thread, while the context lives.
  virtual std::shared_ptr<CallScope> Scope() const = 0;

 protected:
  ~ScopeOwner() = default;
};

}  // namespace penstock::inline v0
