#pragma once

// A value, or the reason why there is none.
//
// Creating a client or a server can fail on its settings; every reason is told at once. Result carries either, so that
// no exception and no third-party type stands in an interface.
//
//     auto client = penstock::Client::Create(settings);
//     if (!client.ok()) return Fail(client.error().message());
//     client->Call(...);
//
// Threads: a plain value, as safe as what it holds.
// Ownership: owns the value or the error.
// Time: none.
// Errors: value(), * and -> on a Result that holds an error are programming errors, and throw std::bad_variant_access.

#include <string>
#include <utility>
#include <variant>

namespace penstock::inline v0 {

// Why something could not be made. The message is complete sentences for a log or a terminal; several problems stand on
// a line each.
class Error {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}

  const std::string& message() const noexcept { return message_; }

 private:
  std::string message_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const noexcept { return held_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return std::get<0>(held_); }
  const T& value() const& { return std::get<0>(held_); }
  T&& value() && { return std::get<0>(std::move(held_)); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Only where ok() is false.
  const Error& error() const { return std::get<1>(held_); }

 private:
  std::variant<T, Error> held_;
};

}  // namespace penstock::inline v0
