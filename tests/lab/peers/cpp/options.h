#pragma once

// A peer's command line: `--name NAME` and what its server is made with. Anything else ends the program with exit code 2.

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace penstock::lab {

struct PeerOptions {
  std::string name;
  // 0: the library's default.
  int permit_ping_ms = 0;
  int connection_age_ms = 0;
  int max_receive_bytes = 0;
  // Calls must carry `authorization: Bearer <token>`; empty: nobody asks.
  std::string token;

  static PeerOptions Parse(int argc, char** argv) {
    PeerOptions options;
    const std::map<std::string_view, int*> numbers{{"--permit-ping-ms", &options.permit_ping_ms},
                                                   {"--connection-age-ms", &options.connection_age_ms},
                                                   {"--max-receive-bytes", &options.max_receive_bytes}};
    const std::map<std::string_view, std::string*> texts{{"--name", &options.name}, {"--token", &options.token}};
    for (int at = 1; at < argc; at += 2) {
      const std::string_view flag = argv[at];
      const std::string_view value = at + 1 < argc ? argv[at + 1] : "";
      if (const auto text = texts.find(flag); text != texts.end()) {
        *text->second = value;
        continue;
      }
      const auto number = numbers.find(flag);
      if (number == numbers.end() ||
          std::from_chars(value.begin(), value.end(), *number->second).ptr != value.end() || value.empty()) {
        std::fprintf(stderr, "%s: what is %s %s?\n", argv[0], argv[at], std::string(value).c_str());
        std::exit(2);
      }
    }
    return options;
  }
};

// What the harness waits for.
inline void Announce(int lab_port, int driver_port) {
  std::printf("ready %d %d\n", lab_port, driver_port);
  std::fflush(stdout);
}

}  // namespace penstock::lab
