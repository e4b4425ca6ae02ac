// Stands for an app: one command is one request to the wallet (--times makes it more), never repeated by itself, so that what it
// shows can be counted.
//
//     app --plaintext pay alice bob 5
//     app --plaintext --baggage 'penstock.fault=grpc:ledger.v1.Ledger/Transfer?abort&count=2' pay alice bob 5
//     app --plaintext watch bob
//
// Exit code 0 when every request was answered OK, 1 when not, 78 when the settings make no sense.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <string>
#include <utility>

#include "penstock/client/client.h"
#include "wallet/v1/wallet.grpc.pb.h"

namespace {

using penstock::CallResult;
using ::wallet::v1::Balance;
using ::wallet::v1::Wallet;

std::string Name(grpc::StatusCode code) {
  static constexpr std::array kNames = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
                                        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
                                        "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};
  return kNames.at(code);  // a client of penstock's gives no other (C8)
}

std::string Shown(const grpc::Status& status) {
  std::string shown = Name(status.error_code()) + ": " + status.error_message();
  ::wallet::v1::StatusDetails details;
  ::wallet::v1::Refusal refusal;
  if (details.ParseFromString(status.error_details()) && details.details_size() == 1 && details.details(0).UnpackTo(&refusal)) {
    shown += " (" + ::wallet::v1::Refusal::Reason_Name(refusal.reason()) + ")";
  }
  return shown;
}

void Print(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::string address = "localhost:9091";
  std::string ca;
  std::string baggage;
  bool plaintext = false;
  int times = 1;
  std::string account;
  std::string from;
  std::string to;
  std::string id = fmt::format("app-{}-{}", getpid(), std::chrono::system_clock::now().time_since_epoch().count());
  std::int64_t amount = 0;

  CLI::App app("Asks the wallet.", "app");
  app.add_option("--wallet", address, "the wallet's host:port")->envname("APP_WALLET");
  app.add_option("--ca", ca, "a file: whom the wallet's certificate must lead to (PEM)");
  app.add_flag("--plaintext", plaintext, "no TLS: for trying it on one machine");
  app.add_option("--baggage", baggage, "goes along with each request, as the header of that name");
  app.add_option("--times", times, "so many requests, one after the other; how they ended is counted")->check(CLI::PositiveNumber);
  CLI::App* pay = app.add_subcommand("pay", "moves money");
  pay->add_option("from", from)->required();
  pay->add_option("to", to)->required();
  pay->add_option("amount", amount)->required();
  pay->add_option("--id", id, "the payment's; one that is known pays nothing again");
  CLI::App* balance = app.add_subcommand("balance", "shows what an account has");
  balance->add_option("account", account)->required();
  CLI::App* watch = app.add_subcommand("watch", "shows what an account has whenever that changes");
  watch->add_option("account", account)->required();
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);

  penstock::ClientSettings settings{.address = address};
  settings.plaintext = plaintext;
  if (!plaintext) settings.tls = penstock::Tls{.roots_file = ca};
  settings.max_attempts = 1;
  settings.breaker.trip = [](const penstock::Counts&) { return false; };  // it is the wallet's breaker that is looked at
  auto client = penstock::Client::Create(std::move(settings));
  if (!client.ok()) {
    fmt::print(stderr, "app: {}\n", client.error().message());
    return 78;
  }
  penstock::CallOptions options;
  if (!baggage.empty()) options.metadata = {{"baggage", baggage}};

  if (watch->parsed()) {
    ::wallet::v1::WatchBalanceRequest request;
    request.set_account(account);
    std::promise<grpc::Status> ended;
    const penstock::Subscription subscription = client->Subscribe(
        PENSTOCK_METHOD(Wallet, WatchBalance), request,
        {.on_message = [](const Balance& now) { Print(fmt::format("{} has {}", now.account(), now.balance())); },
         .before_reopen = {},
         .on_end = [&](const CallResult& result) { ended.set_value(result.status); }},
        {.call = options});
    const grpc::Status status = ended.get_future().get();
    Print(Shown(status));
    return status.ok() ? 0 : 1;
  }

  std::map<std::string, int> ends;
  for (int i = 0; i < times; ++i) {
    grpc::Status status;
    std::string answer;
    if (pay->parsed()) {
      ::wallet::v1::PayRequest request;
      request.set_payment_id(times == 1 ? id : fmt::format("{}-{}", id, i));
      request.set_from(from);
      request.set_to(to);
      request.set_amount(amount);
      const auto paid = client->CallAndWait(PENSTOCK_METHOD(Wallet, Pay), request, options);
      status = paid.result.status;
      answer = fmt::format("OK: {} has {}{}", from, paid.response.balance(), paid.response.repeated() ? " (paid before)" : "");
    } else {
      ::wallet::v1::GetBalanceRequest request;
      request.set_account(account);
      const auto told = client->CallAndWait(PENSTOCK_METHOD(Wallet, GetBalance), request, options);
      status = told.result.status;
      answer = fmt::format("OK: {} has {}", account, told.response.balance());
    }
    ++ends[Name(status.error_code())];
    if (times == 1) Print(status.ok() ? answer : Shown(status));
  }
  if (times > 1) {
    std::string counted;
    for (const auto& [name, count] : ends) counted += fmt::format("{}{} {}", counted.empty() ? "" : ", ", count, name);
    Print(fmt::format("{} requests: {}", times, counted));
  }
  return ends["OK"] == times ? 0 : 1;
}
