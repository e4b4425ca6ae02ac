#pragma once

// The name of a generated method, with its path and its types.
//
// A generated stub has a function for each method, but a pointer to it carries no name. PENSTOCK_METHOD joins the two, so that
// a call names a method that the compiler checks, and never a path string that it cannot:
//
//     client->Call(PENSTOCK_METHOD(ledger::v1::Ledger, Transfer), request, {}, callback);
//
// It works for all four kinds of method, and costs nothing at run time.
//
// Threads: constants.
// Ownership: constants; they live as long as the code that names them.
// Time: none.
// Errors: a method that the service does not have does not compile.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace penstock::inline v0 {

namespace detail {

// A string literal as a template's argument.
template <std::size_t size>
struct Literal {
  char text[size] = {};
  constexpr Literal(const char (&literal)[size]) { std::copy_n(literal, size, text); }  // NOLINT: implicit on purpose
  constexpr std::string_view view() const { return {text, size - 1}; }
};

template <class Service>
using AsyncInterface = typename Service::StubInterface::async_interface;

// What the client keeps a method's entry by: one object per method and program.
struct MethodInfo {
  std::string_view path;  // "/package.Service/Method"
  // The service's stub on a channel, as its AsyncInterface.
  std::shared_ptr<void> (*make_stub)(const std::shared_ptr<grpc::ChannelInterface>& channel);

  std::string_view service() const { return path.substr(1, path.rfind('/') - 1); }
  std::string_view method() const { return path.substr(path.rfind('/') + 1); }
};

template <class Service>
std::shared_ptr<void> MakeStub(const std::shared_ptr<grpc::ChannelInterface>& channel) {
  std::shared_ptr<typename Service::StubInterface> stub = Service::NewStub(channel);
  AsyncInterface<Service>* async = stub->async();
  return std::shared_ptr<AsyncInterface<Service>>(std::move(stub), async);
}

template <class Service, Literal name>
struct PathOf {
  static constexpr std::string_view kService = Service::service_full_name();
  static constexpr std::size_t kSize = kService.size() + name.view().size() + 2;
  struct Text {
    char text[kSize + 1] = {};
  };
  static constexpr Text kText = [] {
    Text path;
    char* at = path.text;
    *at++ = '/';
    at = std::copy(kService.begin(), kService.end(), at);
    *at++ = '/';
    std::copy(name.view().begin(), name.view().end(), at);
    return path;
  }();
};

template <class Service, Literal name>
inline constexpr MethodInfo kMethodInfo{
    {PathOf<Service, name>::kText.text, PathOf<Service, name>::kSize}, &MakeStub<Service>};

}  // namespace detail

// What PENSTOCK_METHOD gives for each kind: what to call on the stub, and the method's one MethodInfo.
template <class ServiceType, class RequestType, class ResponseType>
struct UnaryMethod {
  using Service = ServiceType;
  using Request = RequestType;
  using Response = ResponseType;
  using Async = detail::AsyncInterface<Service>;
  const detail::MethodInfo* info;
  void (Async::*start)(grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);
};

template <class ServiceType, class RequestType, class ResponseType>
struct ServerStreamMethod {
  using Service = ServiceType;
  using Request = RequestType;
  using Response = ResponseType;
  using Async = detail::AsyncInterface<Service>;
  const detail::MethodInfo* info;
  void (Async::*start)(grpc::ClientContext*, const Request*, grpc::ClientReadReactor<Response>*);
};

template <class ServiceType, class RequestType, class ResponseType>
struct ClientStreamMethod {
  using Service = ServiceType;
  using Request = RequestType;
  using Response = ResponseType;
  using Async = detail::AsyncInterface<Service>;
  const detail::MethodInfo* info;
  void (Async::*start)(grpc::ClientContext*, Response*, grpc::ClientWriteReactor<Request>*);
};

template <class ServiceType, class RequestType, class ResponseType>
struct BidiMethod {
  using Service = ServiceType;
  using Request = RequestType;
  using Response = ResponseType;
  using Async = detail::AsyncInterface<Service>;
  const detail::MethodInfo* info;
  void (Async::*start)(grpc::ClientContext*, grpc::ClientBidiReactor<Request, Response>*);
};

namespace detail {

// The overload that the generated function fits says which kind it is; of a unary method's two forms the function form fits.
template <class Service, Literal name, class Request, class Response>
constexpr UnaryMethod<Service, Request, Response> Describe(void (AsyncInterface<Service>::*start)(
    grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>)) {
  return {&kMethodInfo<Service, name>, start};
}

template <class Service, Literal name, class Request, class Response>
constexpr ServerStreamMethod<Service, Request, Response> Describe(
    void (AsyncInterface<Service>::*start)(grpc::ClientContext*, const Request*, grpc::ClientReadReactor<Response>*)) {
  return {&kMethodInfo<Service, name>, start};
}

template <class Service, Literal name, class Request, class Response>
constexpr ClientStreamMethod<Service, Request, Response> Describe(
    void (AsyncInterface<Service>::*start)(grpc::ClientContext*, Response*, grpc::ClientWriteReactor<Request>*)) {
  return {&kMethodInfo<Service, name>, start};
}

template <class Service, Literal name, class Request, class Response>
constexpr BidiMethod<Service, Request, Response> Describe(
    void (AsyncInterface<Service>::*start)(grpc::ClientContext*, grpc::ClientBidiReactor<Request, Response>*)) {
  return {&kMethodInfo<Service, name>, start};
}

template <class Method>
inline constexpr bool kIsUnary = false;
template <class Service, class Request, class Response>
inline constexpr bool kIsUnary<UnaryMethod<Service, Request, Response>> = true;

}  // namespace detail

// A method by name, for settings: made from what PENSTOCK_METHOD gives, of any kind.
class MethodName {
 public:
  template <class Method>
    requires requires(const Method& method) { method.info->path; }
  constexpr MethodName(const Method& method) : info_(method.info), unary_(detail::kIsUnary<Method>) {}  // NOLINT: implicit on purpose

  // `/package.Service/Method`.
  constexpr std::string_view path() const { return info_->path; }
  // False: a stream's.
  constexpr bool unary() const { return unary_; }

 private:
  const detail::MethodInfo* info_;
  bool unary_;
};

}  // namespace penstock::inline v0

// NOLINTNEXTLINE: a name can be had from a macro only.
#define PENSTOCK_METHOD(Service, Method) \
  (::penstock::detail::Describe<Service, #Method>(&Service::StubInterface::async_interface::Method))
