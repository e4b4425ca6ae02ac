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
  // Keeps this many pairs at most, and none whose messages came to more than `max_kept_bytes` together, serialised, or are
  // found to hold more than four times as much memory.
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

    // False: they are not worth keeping.
    bool Clear(std::size_t max_bytes) {
      const std::size_t bytes = request_.ByteSizeLong() + response_.ByteSizeLong();
      if (bytes > max_bytes) return false;
      request_.Clear();
      response_.Clear();
      // A cleared message keeps the memory of every element that it ever held, so that calls of different shapes add up. What
      // it really holds is counted by reflection, field by field: after so many bytes have gone through, not after each call.
      bytes_since_measured_ += bytes;
      if (bytes_since_measured_ <= max_bytes / 4) return true;
      bytes_since_measured_ = 0;
      return SpaceUsed(request_, max_bytes) + SpaceUsed(response_, max_bytes) <= 4 * max_bytes;
    }

   private:
    // Of a message of the lite runtime, which cannot tell, more than is allowed.
    template <class Message>
    static std::size_t SpaceUsed(const Message& message, std::size_t max_bytes) {
      if constexpr (requires { message.SpaceUsedLong(); }) {
        return message.SpaceUsedLong();
      } else {
        return 4 * max_bytes + 1;
      }
    }

    MessagePool& pool_;
    std::size_t bytes_since_measured_ = 0;
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
