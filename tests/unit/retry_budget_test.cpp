#include "penstock/core/retry_budget.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

using namespace penstock;

namespace {
std::unique_ptr<RetryBudget> Make(double max_tokens, double token_ratio) {
  auto budget = RetryBudget::Create({.max_tokens = max_tokens, .token_ratio = token_ratio});
  REQUIRE_MESSAGE(budget.ok(), budget.error().message());
  return std::move(*budget);
}
}  // namespace

TEST_CASE("U1: a budget starts full, with 100 tokens by default") {
  auto budget = RetryBudget::Create();
  REQUIRE(budget.ok());
  CHECK((*budget)->milli_tokens() == 100'000);
  CHECK((*budget)->max_milli_tokens() == 100'000);
  CHECK((*budget)->RetryAllowed());
}

TEST_CASE("U2: a retryable attempt takes one token, a success gives the ratio back, neither passes its bound") {
  const auto budget = Make(3, 0.25);
  budget->OnSuccess();
  CHECK(budget->milli_tokens() == 3000);
  budget->OnRetryable();
  CHECK(budget->milli_tokens() == 2000);
  budget->OnSuccess();
  CHECK(budget->milli_tokens() == 2250);
  for (int i = 0; i < 5; ++i) budget->OnRetryable();
  CHECK(budget->milli_tokens() == 0);
  for (int i = 0; i < 100; ++i) budget->OnSuccess();
  CHECK(budget->milli_tokens() == 3000);
}

TEST_CASE("U2: less than a token left is taken whole, and a ratio above the maximum fills the budget") {
  const auto budget = Make(0.5, 1e300);
  budget->OnRetryable();
  CHECK(budget->milli_tokens() == 0);
  budget->OnSuccess();
  CHECK(budget->milli_tokens() == 500);
}

TEST_CASE("U3: a retry is allowed only while more than half of the tokens are left") {
  const auto budget = Make(10, 0.001);
  for (int i = 0; i < 4; ++i) CHECK(budget->OnRetryable());
  CHECK(budget->milli_tokens() == 6000);
  CHECK_FALSE(budget->OnRetryable());  // exactly half
  CHECK(budget->milli_tokens() == 5000);
  CHECK_FALSE(budget->RetryAllowed());
  budget->OnSuccess();
  CHECK(budget->milli_tokens() == 5001);
  CHECK(budget->RetryAllowed());
}

TEST_CASE("U3: half of an odd number of thousandths is not more than half") {
  const auto budget = Make(2.001, 0.001);
  CHECK(budget->OnRetryable());  // 1.001 of 2.001
  const auto smaller = Make(1.999, 0.001);
  CHECK_FALSE(smaller->OnRetryable());  // 0.999 of 1.999
}

TEST_CASE("U4: threads that take and give at once lose no token") {
  const auto budget = Make(1000, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&budget] {
      for (int round = 0; round < 20'000; ++round) {
        budget->OnRetryable();
        budget->OnSuccess();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(budget->milli_tokens() == 1'000'000);

  threads.clear();
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&budget] {
      for (int round = 0; round < 100; ++round) budget->OnRetryable();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(budget->milli_tokens() == 600'000);
}

TEST_CASE("U5, T1: settings out of range are refused, all of them at once, with name, value and range") {
  for (double bad : {0.0, -1.0, 1000.001, 0.0001, std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto budget = RetryBudget::Create({.max_tokens = bad, .token_ratio = 0.1});
    CAPTURE(bad);
    REQUIRE_FALSE(budget.ok());
    CHECK(budget.error().message().find("max_tokens") != std::string::npos);
    CHECK(budget.error().message().find("1000") != std::string::npos);
  }
  for (double bad : {0.0, -0.1, 0.0009, std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto budget = RetryBudget::Create({.max_tokens = 100, .token_ratio = bad});
    CAPTURE(bad);
    REQUIRE_FALSE(budget.ok());
    CHECK(budget.error().message().find("token_ratio") != std::string::npos);
  }
  auto both = RetryBudget::Create({.max_tokens = -7, .token_ratio = 0});
  REQUIRE_FALSE(both.ok());
  CHECK(both.error().message().find("max_tokens: -7; expected") != std::string::npos);
  CHECK(both.error().message().find("token_ratio: 0; expected") != std::string::npos);
}

TEST_CASE("U5: the ratio is kept to three decimals, and those that binary cannot hold are not cut") {
  for (int thousandths = 1; thousandths <= 1000; ++thousandths) {
    const auto budget = Make(1000, thousandths / 1000.0);
    budget->OnRetryable();
    budget->OnSuccess();
    CHECK(budget->milli_tokens() == 999'000u + static_cast<unsigned>(thousandths));
  }
  const auto cut = Make(1000, 0.1239);
  cut->OnRetryable();
  cut->OnSuccess();
  CHECK(cut->milli_tokens() == 999'123);
}
