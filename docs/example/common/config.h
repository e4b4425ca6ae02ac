#pragma once

// A program's configuration: flags, and environment variables for what no flag says.
//
// Every value that makes no sense is named, all at once, and the program ends with exit code 78 (EX_CONFIG), so that a
// container that is configured wrongly says all of it in its first log.
//
//     Config config("ledger", "LEDGER_", "keeps accounts");
//     const auto address = config.Text("address", "where to listen", ":9090");
//     const auto drain = config.Number("drain-ms", "how long to drain", 5000, 0, 600'000);
//     if (const auto exit_code = config.Parse(argc, argv)) return *exit_code;
//     Serve(*address, std::chrono::milliseconds(*drain));
//
// The variable of --drain-ms is LEDGER_DRAIN_MS. What the getters give is filled in by Parse(), so keep the Value objects.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace example {

// EX_CONFIG of sysexits.h.
inline constexpr int kBadConfiguration = 78;

class Config {
 public:
  template <class T>
  class Value {
   public:
    const T& operator*() const { return *value_; }
    const T* operator->() const { return value_.get(); }

   private:
    friend class Config;
    explicit Value(T initial) : value_(std::make_shared<T>(std::move(initial))) {}
    std::shared_ptr<T> value_;
  };

  Config(const std::string& program, std::string prefix, const std::string& purpose) : app_(purpose, program), prefix_(std::move(prefix)) {}

  // What is wrong with a text: the end of a sentence that begins with its name; empty when it is fine.
  using TextCheck = std::function<std::string(const std::string&)>;

  Value<std::string> Text(const std::string& name, const std::string& help, const std::string& initial = {}, TextCheck check = {}) {
    Value<std::string> value(initial);
    Add(name, help, initial, [value, check = std::move(check)](const std::string& text) {
      *value.value_ = text;
      return check ? check(text) : std::string();
    });
    return value;
  }

  Value<std::int64_t> Number(const std::string& name, const std::string& help, std::int64_t initial, std::int64_t least, std::int64_t greatest) {
    Value<std::int64_t> value(initial);
    Add(name, help, std::to_string(initial), [value, least, greatest](const std::string& text) -> std::string {
      std::istringstream stream(text);
      std::int64_t number = 0;
      if (!(stream >> number) || !stream.eof() || number < least || number > greatest) {
        return fmt::format("is \"{}\": it must be a whole number from {} to {}", text, least, greatest);
      }
      *value.value_ = number;
      return {};
    });
    return value;
  }

  // On the command line without a value; in the environment 1, true, 0 or false.
  Value<bool> Flag(const std::string& name, const std::string& help) {
    Value<bool> value(false);
    Entry& entry = AddEntry(name, "false", [value](const std::string& text) -> std::string {
      if (text != "1" && text != "true" && text != "0" && text != "false") return fmt::format("is \"{}\": it must be true or false", text);
      *value.value_ = text == "1" || text == "true";
      return {};
    });
    app_.add_flag("--" + name, entry.text, help)->envname(Variable(name));
    return value;
  }

  // A check that concerns several values: what is wrong, a line each; empty when all is well. A number that is bad by itself is
  // as it was initially then.
  //
  // `names` makes a library's complaints the user's: where a line begins with a setting's name, that is replaced by the value
  // that the setting was made of ({{"address", "ledger-address"}}).
  void Check(std::function<std::string()> check, std::map<std::string, std::string> names = {}) {
    checks_.push_back({std::move(check), std::move(names)});
  }

  // Nothing when all is well; else the exit code, with everything that is wrong on standard error.
  std::optional<int> Parse(int argc, const char* const* argv) {
    std::vector<std::string> problems;
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ExtrasError& error) {
      problems.push_back(error.what());  // the values that it does know are there
    } catch (const CLI::ParseError& error) {
      return app_.exit(error) == 0 ? 0 : kBadConfiguration;  // 0 for --help
    }
    for (const auto& entry : entries_) {
      const std::string problem = entry->check(entry->text);
      if (!problem.empty()) problems.push_back(fmt::format("{} {}", Shown(entry->name), problem));
    }
    for (const auto& [check, names] : checks_) {
      std::istringstream lines(check());
      for (std::string line; std::getline(lines, line);) {
        const std::size_t end = std::min(line.find_first_of(": "), line.size());
        const auto name = names.find(line.substr(0, end));
        if (name != names.end()) line.replace(0, end, Shown(name->second));
        if (std::find(problems.begin(), problems.end(), line) == problems.end()) problems.push_back(line);
      }
    }
    if (problems.empty()) return std::nullopt;
    for (const std::string& problem : problems) std::cerr << app_.get_name() << ": " << problem << "\n";
    return kBadConfiguration;
  }

 private:
  struct Entry {
    std::string name;
    std::string text;
    TextCheck check;
  };

  Entry& AddEntry(const std::string& name, const std::string& initial, TextCheck check) {
    entries_.push_back(std::make_unique<Entry>(Entry{name, initial, std::move(check)}));
    return *entries_.back();
  }

  void Add(const std::string& name, const std::string& help, const std::string& initial, TextCheck check) {
    app_.add_option("--" + name, AddEntry(name, initial, std::move(check)).text, help)->envname(Variable(name));
  }

  std::string Shown(const std::string& name) const { return fmt::format("--{} ({})", name, Variable(name)); }

  std::string Variable(const std::string& name) const {
    std::string variable = prefix_;
    for (const char letter : name) variable += letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    return variable;
  }

  CLI::App app_;
  const std::string prefix_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::pair<std::function<std::string()>, std::map<std::string, std::string>>> checks_;
};

}  // namespace example
