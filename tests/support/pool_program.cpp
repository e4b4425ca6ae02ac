// docs/serving.md's server whose handlers block, as a program: tells its port, and each handler that begins, on standard
// output. A handler takes a minute.
//
//     pool_program HOST:PORT

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ledger/v1/ledger.grpc.pb.h"
#include "penstock/server/server.h"

namespace {

using namespace std::chrono_literals;
using ledger::v1::Account;
using ledger::v1::GetAccountRequest;
using ledger::v1::Ledger;

// What a handler uses: it must not be gone before the handler is.
class Database {
 public:
  Database() : rows_(std::make_unique<int>(1)) {}
  ~Database() { std::puts("destroyed 1"); }

  int Read() const {
    // A signal that follows "reading" finds Run() listening: calls are served before that.
    for (struct sigaction now{}; sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == SIG_DFL;) std::this_thread::sleep_for(1ms);
    std::puts("reading 1");
    std::fflush(stdout);
    std::this_thread::sleep_for(60s);
    return *rows_;
  }

 private:
  std::unique_ptr<int> rows_;
};

class LedgerService final : public penstock::Service<Ledger> {
 public:
  LedgerService(Database& database, penstock::WorkPool& pool) : database_(database), pool_(pool) {}

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest*, Account* account) override {
    return HandleOn(pool_, context, [=, this] {
      account->set_version(database_.Read());
      return grpc::Status::OK;
    });
  }

 private:
  Database& database_;
  penstock::WorkPool& pool_;
};

int Serve(penstock::ServerSettings settings) {
  Database database;
  penstock::WorkPool pool({.threads = 8, .max_waiting = 64});  // before the services that use it
  LedgerService service(database, pool);
  auto server = penstock::Server::Create(std::move(settings), {&service});
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.error().message().c_str());
    return 2;
  }
  std::printf("serving on port %d\n", (*server)->port());
  std::fflush(stdout);
  const int code = (*server)->Run();
  if (code != 0) std::_Exit(code);  // a handler may still run: destroy nothing under it
  return code;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  penstock::ServerSettings settings{.address = arguments[1], .plaintext = true};
  settings.drain = 0s;
  settings.grace = 1s;
  return Serve(std::move(settings));
}
