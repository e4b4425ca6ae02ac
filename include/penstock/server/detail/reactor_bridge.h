#pragma once

// gRPC's own reactor of one kind, inside of penstock's.

#include <grpcpp/support/server_callback.h>

#include <type_traits>
#include <utility>

#include "penstock/server/detail/reactor_base.h"

namespace penstock::inline v0::detail {

template <class Grpc>
class Bridged : public ReactorBase {
 public:
  using GrpcReactor = Grpc;

  GrpcReactor* grpc_reactor() noexcept { return &bridge_; }

 protected:
  void GrpcFinish(grpc::Status status) override { bridge_.Finish(std::move(status)); }

  // gRPC's reactions.
  virtual void HandleHeadersSent(bool /*ok*/) noexcept {}
  virtual void HandleReadDone(bool /*ok*/) noexcept {}
  virtual void HandleWriteDone(bool /*ok*/) noexcept {}

 private:
  class Bridge final : public Grpc {
   public:
    explicit Bridge(Bridged* owner) noexcept : owner_(owner) {}
    void OnSendInitialMetadataDone(bool ok) override { owner_->HandleHeadersSent(ok); }
    // Override where the kind of call has them.
    virtual void OnReadDone(bool ok) { owner_->HandleReadDone(ok); }
    virtual void OnWriteDone(bool ok) { owner_->HandleWriteDone(ok); }
    void OnCancel() override { owner_->HandleCancel(); }
    void OnDone() override { owner_->HandleDone(); }

   private:
    Bridged* const owner_;
  };

  void GrpcSendInitialMetadata() final { bridge_.StartSendInitialMetadata(); }
  bool is_stream() const noexcept final { return !std::is_same_v<Grpc, grpc::ServerUnaryReactor>; }

  Bridge bridge_{this};
};

}  // namespace penstock::inline v0::detail
