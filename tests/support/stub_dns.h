#pragma once

// A DNS server that answers every question for an A record with the addresses it was given last, and counts the
// questions.
//
//     StubDns dns({"127.0.0.11", "127.0.0.12"});
//     ... .address = "pods.test:9090", .connection = {.name_server = dns.address()}
//     dns.Answer({"127.0.0.13"});
//
// Threads: every member may be called from any thread; it answers on a thread of its own.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace penstock::test {

class StubDns {
 public:
  explicit StubDns(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {
    socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(socket_ >= 0);
    sockaddr_in bound{};
    bound.sin_family = AF_INET;
    bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&bound), sizeof bound) == 0);
    socklen_t length = sizeof bound;
    REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &length) == 0);
    port_ = ntohs(bound.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~StubDns() {
    stopping_ = true;
    ::shutdown(socket_, SHUT_RDWR);
    // A datagram to itself ends a receive that shutdown did not.
    sockaddr_in self{};
    self.sin_family = AF_INET;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    self.sin_port = htons(port_);
    const int waker = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ::sendto(waker, "", 0, 0, reinterpret_cast<sockaddr*>(&self), sizeof self);
    ::close(waker);
    thread_.join();
    ::close(socket_);
  }
  StubDns(const StubDns&) = delete;
  StubDns& operator=(const StubDns&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int questions() const { return questions_; }
  void Answer(std::vector<std::string> addresses) {
    const std::lock_guard lock(mutex_);
    addresses_ = std::move(addresses);
  }

 private:
  void Serve() {
    unsigned char query[512];
    for (;;) {
      sockaddr_in from{};
      socklen_t length = sizeof from;
      const ssize_t got = ::recvfrom(socket_, query, sizeof query, 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (stopping_) return;
      if (got < 17) continue;
      // Header, name, type, class (RFC 1035, 4.1).
      std::size_t end = 12;
      while (end < static_cast<std::size_t>(got) && query[end] != 0) end += query[end] + 1U;
      if (end + 5 > static_cast<std::size_t>(got)) continue;
      const bool for_ipv4 = query[end + 1] == 0 && query[end + 2] == 1;
      std::vector<std::string> addresses;
      if (for_ipv4) {
        ++questions_;
        const std::lock_guard lock(mutex_);
        addresses = addresses_;
      }
      std::string answer(reinterpret_cast<char*>(query), end + 5);
      answer[2] = '\x85';  // An answer, authoritative, recursion as desired.
      answer[3] = '\x80';
      answer[7] = static_cast<char>(addresses.size());
      answer[6] = answer[8] = answer[9] = answer[10] = answer[11] = 0;
      for (const std::string& address : addresses) {
        in_addr parsed{};
        ::inet_pton(AF_INET, address.c_str(), &parsed);
        answer.append("\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04", 12);
        answer.append(reinterpret_cast<char*>(&parsed.s_addr), 4);
      }
      ::sendto(socket_, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&from), length);
    }
  }

  int socket_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> questions_{0};
  std::mutex mutex_;
  std::vector<std::string> addresses_;
  std::thread thread_;
};

}  // namespace penstock::test
