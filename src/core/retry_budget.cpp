#include "penstock/core/retry_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::inline v0 {

namespace {

constexpr std::uint32_t kMilliTokensAnAttempt = 1000;

// Three decimals, further ones dropped; the small addend keeps 0.29 (which is 0.28999... in binary) at 290.
double InThousandths(double value) { return std::floor(value * 1000 + 1e-6); }

}  // namespace

void CheckSettings(const RetryBudgetSettings& settings, std::string_view prefix, std::vector<std::string>& problems) {
  // Written so that NaN is refused too.
  if (!(InThousandths(settings.max_tokens) >= 1 && settings.max_tokens <= 1000)) {
    problems.push_back(fmt::format("{}max_tokens: {}; expected more than 0 and at most 1000, in steps of 0.001", prefix,
                                   settings.max_tokens));
  }
  if (!(InThousandths(settings.token_ratio) >= 1 && std::isfinite(settings.token_ratio))) {
    problems.push_back(fmt::format("{}token_ratio: {}; expected 0.001 or more (three decimals are kept)", prefix,
                                   settings.token_ratio));
  }
}

Result<std::unique_ptr<RetryBudget>> RetryBudget::Create(const RetryBudgetSettings& settings) {
  std::vector<std::string> problems;
  CheckSettings(settings, "", problems);
  if (!problems.empty()) return Error(fmt::format("{}", fmt::join(problems, "\n")));
  const double max_milli_tokens = InThousandths(settings.max_tokens);
  const double milli_ratio = std::min(InThousandths(settings.token_ratio), max_milli_tokens);
  return std::unique_ptr<RetryBudget>(
      new RetryBudget(static_cast<std::uint32_t>(max_milli_tokens), static_cast<std::uint32_t>(milli_ratio)));
}

bool RetryBudget::OnRetryable() noexcept {
  std::uint32_t before = milli_tokens_.load(std::memory_order_relaxed);
  std::uint32_t after = 0;
  do {
    after = before - std::min(before, kMilliTokensAnAttempt);
    if (after == before) break;  // drained: nothing to take, nothing to write
  } while (!milli_tokens_.compare_exchange_weak(before, after, std::memory_order_relaxed, std::memory_order_relaxed));
  return IsEnough(after);
}

void RetryBudget::GiveBack() noexcept {
  std::uint32_t before = milli_tokens_.load(std::memory_order_relaxed);
  while (before < max_milli_tokens_) {
    const std::uint32_t after = before + std::min(milli_ratio_, max_milli_tokens_ - before);
    if (milli_tokens_.compare_exchange_weak(before, after, std::memory_order_relaxed, std::memory_order_relaxed)) return;
  }
}

}  // namespace penstock::inline v0
