#pragma once

// What a figure was measured on: machine, compiler, flags, commit and versions, as a JSON object.

#include <string>

namespace bench {

std::string AboutJson();

}  // namespace bench
