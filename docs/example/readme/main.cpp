// README.md's example, as a program: a wallet's server that asks a ledger on behalf of its own callers. The listing is
// taken from here by tests/support/check_docs.py.
#include <penstock/client/client.h>
#include <penstock/server/server.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ledger/v1/ledger.grpc.pb.h"

using ledger::v1::Account;
using ledger::v1::GetAccountRequest;
using ledger::v1::Ledger;

// Answers GetAccount with what the ledger behind it answers.
class Relay final : public penstock::Service<Ledger> {
 public:
  explicit Relay(penstock::Client& ledger) : ledger_(ledger) {}

  grpc::ServerUnaryReactor* GetAccount(grpc::CallbackServerContext* context, const GetAccountRequest* request,
                                       Account* response) override {
    return Handle(context, [&](penstock::Reply reply) {
      ledger_.Call(PENSTOCK_METHOD(Ledger, GetAccount), *request, {.parent = context},
                   [reply = std::move(reply), response](const penstock::CallResult& result, Account& account) mutable {
                     *response = std::move(account);
                     reply.Finish(result.status);
                   });
    });
  }

 private:
  penstock::Client& ledger_;
};

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: readme LEDGER LISTEN   (both host:port)\n");
    return 2;
  }
  auto ledger = penstock::Client::Create({.address = argv[1], .plaintext = true});
  if (!ledger.ok()) return std::fprintf(stderr, "%s\n", ledger.error().message().c_str()), 78;
  Relay relay(*ledger);
  auto server = penstock::Server::Create({.address = argv[2], .plaintext = true}, {&relay});
  if (!server.ok()) return std::fprintf(stderr, "%s\n", server.error().message().c_str()), 78;
  const int code = (*server)->Run();  // SIGTERM -> drain -> shutdown -> exit code
  if (code != 0) std::_Exit(code);    // a handler may still run: destroy nothing under it
  return code;
}
