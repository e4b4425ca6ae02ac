#pragma once

// How a refused setting is told: its name, its value and what is allowed (T1), on one line that a terminal or a log can
// show whatever the value holds.
//
//     problems.push_back(Problem("address", value, "has no port", "host:port, such as ledger:9090"));
//
// Threads: pure functions.
// Ownership: values.
// Time: none.
// Errors: none.

#include <string>
#include <string_view>

#include "core/milliseconds.h"

namespace penstock::inline v0::detail {

// In double quotes, control characters and bytes outside ASCII as \xHH, cut after 120 bytes.
std::string Quoted(std::string_view value);

// `field: "value" what; expected expected`.
std::string Problem(std::string_view field, std::string_view value, std::string_view what, std::string_view expected);

}  // namespace penstock::inline v0::detail
