#pragma once

// What is measured: each scene is a kind of traffic and those that are compared in it.
//
// Threads: none. Ownership: plain values. Time: none. Errors: none.

#include <string>
#include <vector>

#include "variant.h"

namespace load {

// One that is compared: in most scenes the client differs, in those of a server the server does.
struct Contender {
  std::string label;
  std::string variant;
  std::string server = "raw";
};

// Penstock's contender of a scene and what its cells are called: "<scene>.<infix><metric>".
struct Form {
  std::string label;
  std::string infix;
};

struct Scene {
  std::string name;
  std::string what;
  Kind kind = Kind::kUnary;
  int outstanding = 1;
  int payload = 64;
  bool waited_for = false;
  bool in_process = false;
  bool server_side = false;  // the server's process is what is measured
  double seconds = 0.3;
  int clients = 0;
  int spaced_ms = 0;
  bool counted = false;      // instructions too, by callgrind
  bool in_short = true;
  std::vector<Contender> contenders{};  // the first is the one that all others are compared with
  std::string control{};                // the first once more
  std::vector<Form> forms{};
};

const std::vector<Scene>& Scenes();

}  // namespace load
