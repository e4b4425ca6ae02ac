#pragma once

// Requests and responses that are used again.
//
// gRPC makes a request and a response for each unary call and throws them away, with every string in them. A pool keeps
// them, and their memory, for the next call.
//
//     LedgerService() { PoolMessages(&LedgerService::SetMessageAllocatorFor_GetAccount); }      // in a Service<>
//
// Threads: gRPC calls it from its threads, many at once.
// Ownership: the pool outlives the server. Messages go back to it after OnDone.
// Time: none.
// Errors: none.

#include <grpcpp/support/message_allocator.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::inline v0 {

template <class Request, class Response>
class MessagePool final : public grpc::MessageAllocator<Request, Response> {
 public:
  // Keeps this many pairs at most, and none whose messages came to more than `max_kept_bytes` together, serialised.
  explicit MessagePool(std::size_t max_kept = 256, std::size_t max_kept_bytes = 64 * 1024)
      : max_kept_(max_kept), max_kept_bytes_(max_kept_bytes) {
    free_.reserve(max_kept_);
  }

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Holder* holder = free_.back().release();
        free_.pop_back();
        return holder;
      }
    }
    return new Holder(*this);
  }

 private:
  class Holder final : public grpc::MessageHolder<Request, Response> {
   public:
    explicit Holder(MessagePool& pool) : pool_(pool) {
      this->set_request(&request_);
      this->set_response(&response_);
    }

    void Release() override { pool_.TakeBack(this); }

    bool Clear(std::size_t max_bytes) {
      // What they hold when serialised: a message that never held more keeps no more memory than a small multiple of it, and
      // what it really uses would have to be counted by reflection, field by field.
      if (request_.ByteSizeLong() + response_.ByteSizeLong() > max_bytes) return false;
      request_.Clear();
      response_.Clear();
      return true;
    }

   private:
    MessagePool& pool_;
    Request request_;
    Response response_;
  };

  void TakeBack(Holder* returned) {
    std::unique_ptr<Holder> holder(returned);
    if (!holder->Clear(max_kept_bytes_)) return;
    std::lock_guard lock(mutex_);
    if (free_.size() < max_kept_) free_.push_back(std::move(holder));
  }

  const std::size_t max_kept_;
  const std::size_t max_kept_bytes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Holder>> free_;
};

}  // namespace penstock::inline v0
