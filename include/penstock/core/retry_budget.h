#pragma once

// How much retrying a dependency may be asked to bear.
//
// When a dependency fails, every caller's retries multiply the load on it just when it can bear it least. A retry budget
// lets a few failures be retried and cuts retries off as soon as failures are more than a small share of the calls.
//
//     auto budget = penstock::RetryBudget::Create({.max_tokens = 100, .token_ratio = 0.1});
//     if (!budget.ok()) return Fail(budget.error().message());
//     if (answered) (*budget)->OnSuccess();
//     else if ((*budget)->OnRetryable()) TryAgain();
//
// Threads: every member may be called from any thread; lock-free. On a full budget OnSuccess() is one relaxed load.
// Ownership: one budget for one dependency, shared by all its callers.
// Time: none; tokens come back with successes, not with time.
// Errors: Create() refuses settings out of range, all of them in one message. The rules are those of gRFC A6 (gRPC
// retry design, "Throttling Retry Attempts and Hedged RPCs").

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/result.h"

namespace penstock::inline v0 {

struct RetryBudgetSettings {
  // The most tokens there can be, and how many there are at the start; in (0, 1000], kept to three decimals.
  double max_tokens = 100;

  // What a success gives back; above 0, kept to three decimals (further ones are dropped, as in gRFC A6).
  double token_ratio = 0.1;
};

// Appends a sentence for each setting that makes no sense, its name preceded by `prefix` ("retry_budget.").
void CheckSettings(const RetryBudgetSettings& settings, std::string_view prefix, std::vector<std::string>& problems);

class RetryBudget {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RetryBudget>> Create(const RetryBudgetSettings& settings = {});

  RetryBudget(const RetryBudget&) = delete;
  RetryBudget& operator=(const RetryBudget&) = delete;

  // An attempt was classified as a success, or a stream opened: gives token_ratio back.
  void OnSuccess() noexcept {
    // Relaxed, as everywhere in this class: the number of tokens is all that is shared, nothing is published with it.
    // A full budget writes nothing, so that a healthy dependency's callers share this line without a transfer.
    if (milli_tokens_.load(std::memory_order_relaxed) < max_milli_tokens_) [[unlikely]] GiveBack();
  }

  // An attempt was classified as retryable: takes one token, whether or not another attempt follows. Returns what
  // RetryAllowed() is after that.
  bool OnRetryable() noexcept;

  // True while more than half of the tokens are left. First attempts need not ask.
  bool RetryAllowed() const noexcept { return IsEnough(milli_tokens_.load(std::memory_order_relaxed)); }

  // Tokens left, in thousandths: 0 to max_milli_tokens().
  std::uint32_t milli_tokens() const noexcept { return milli_tokens_.load(std::memory_order_relaxed); }
  std::uint32_t max_milli_tokens() const noexcept { return max_milli_tokens_; }

 private:
  RetryBudget(std::uint32_t max_milli_tokens, std::uint32_t milli_ratio) noexcept
      : milli_tokens_(max_milli_tokens), max_milli_tokens_(max_milli_tokens), milli_ratio_(milli_ratio) {}

  void GiveBack() noexcept;
  bool IsEnough(std::uint32_t milli_tokens) const noexcept { return milli_tokens * 2 > max_milli_tokens_; }

  // On a line of its own: what stands beside it in memory must not slow it down, nor be slowed down by it.
  alignas(64) std::atomic<std::uint32_t> milli_tokens_;
  const std::uint32_t max_milli_tokens_;
  const std::uint32_t milli_ratio_;  // at most max_milli_tokens_: more fills the budget just the same
};

}  // namespace penstock::inline v0
