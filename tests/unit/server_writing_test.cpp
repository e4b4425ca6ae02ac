// A server reactor's writes, on a base that only notes what comes.
#include <doctest/doctest.h>

#include <vector>

#include "penstock/server/reactors.h"

using namespace penstock;

namespace {

// A message that says how long it is.
struct Sized {
  std::size_t bytes = 0;
  std::size_t ByteSizeLong() const { return bytes; }
};

struct GrpcReactor {
  int writes = 0;
  int last_writes = 0;
  void StartWrite(const Sized*, grpc::WriteOptions) { ++writes; }
  void StartWriteAndFinish(const Sized*, grpc::WriteOptions, grpc::Status) { ++last_writes; }
};

class Base {
 public:
  virtual ~Base() = default;
  bool Finish(grpc::Status status) {
    finished.push_back(std::move(status));
    return true;
  }

  GrpcReactor grpc;
  std::vector<grpc::Status> finished;

 protected:
  enum Flag { kWriting = 1, kWritten = 2 };
  bool Enter(int, int) { return true; }
  bool Claim(int) { return true; }
  bool Has(int) const { return true; }
  void Set(int) {}
  void Clear(int) {}
  void Leave() {}
  void Settle() { GrpcFinish(finish_status_); }
  template <class Function>
  void Guard(const char*, Function&& function) {
    function();
  }
  GrpcReactor* grpc_reactor() { return &grpc; }
  virtual void GrpcFinish(grpc::Status) {}
  virtual void HandleWriteDone(bool ok) noexcept = 0;

  grpc::Status finish_status_;
};

}  // namespace

TEST_CASE("S10: a message that gRPC would abort on ends the stream with INTERNAL") {
  const Sized longest{(std::size_t{1} << 31) - 1};
  const Sized too_long{std::size_t{1} << 31};

  detail::Writing<Base, Sized> reactor;
  CHECK(reactor.StartWrite(&longest));
  CHECK(reactor.grpc.writes == 1);
  CHECK_FALSE(reactor.StartWrite(&too_long));
  CHECK(reactor.grpc.writes == 1);
  REQUIRE(reactor.finished.size() == 1);
  CHECK(reactor.finished[0].error_code() == grpc::StatusCode::INTERNAL);

  detail::Writing<Base, Sized> last;
  CHECK(last.StartWriteAndFinish(&longest, {}, grpc::Status::OK));
  CHECK(last.grpc.last_writes == 1);
  detail::Writing<Base, Sized> too_long_last;
  CHECK_FALSE(too_long_last.StartWriteAndFinish(&too_long, {}, grpc::Status::OK));
  CHECK(too_long_last.grpc.last_writes == 0);
  REQUIRE(too_long_last.finished.size() == 1);
}
