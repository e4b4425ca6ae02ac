#pragma once

// A program's configuration: flags, and environment variables for what no flag says.
//
// Every value that makes no sense is named, all at once, and the program ends with exit code 78 (EX_CONFIG), so that a
// container that is configured wrongly says all of it in its first log.
//
//     Config config("ledger", "LEDGER_", "keeps accounts");
//     const std::string address = config.Text("address", "where to listen", ":9090");
//     const auto drain = config.Milliseconds("drain-ms", "how long to drain", 5000, 0, 600000);
//     if (const auto exit_code = config.Parse(argc, argv)) return *exit_code;
//
// The variable of --drain-ms is LEDGER_DRAIN_MS. What the getters give is filled in by Parse(), so keep the Value objects.

#include <CLI/CLI.hpp>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
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

  Value<std::string> Text(const std::string& name, const std::string& help, const std::string& initial = {}, bool required = false) {
    Value<std::string> value(initial);
    Add(name, help, initial, [value, required](const std::string& text) -> std::string {
      if (required && text.empty()) return "is missing";
      *value.value_ = text;
      return {};
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

  // A file's content; empty when no file is named.
  Value<std::string> File(const std::string& name, const std::string& help) {
    Value<std::string> value{std::string()};
    Add(name, help, "", [value](const std::string& path) -> std::string {
      if (path.empty()) return {};
      std::ifstream file(path, std::ios::binary);
      std::ostringstream content;
      if (!file || !(content << file.rdbuf())) return fmt::format("names \"{}\", which cannot be read", path);
      *value.value_ = content.str();
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

  // Checks that concern several values; the text of a problem, or nothing.
  void Check(std::function<std::string()> check) { checks_.push_back(std::move(check)); }

  // Nothing when all is well; else the exit code, with everything that is wrong on standard error.
  std::optional<int> Parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      // 0 for --help; an unknown flag is a configuration that makes no sense.
      return app_.exit(error) == 0 ? 0 : kBadConfiguration;
    }
    std::vector<std::string> problems;
    for (const auto& entry : entries_) {
      const std::string problem = entry->check(entry->text);
      if (!problem.empty()) problems.push_back(fmt::format("--{} ({}) {}", entry->name, Variable(entry->name), problem));
    }
    if (problems.empty()) {
      for (const auto& check : checks_) {
        const std::string problem = check();
        if (!problem.empty()) problems.push_back(problem);
      }
    }
    if (problems.empty()) return std::nullopt;
    for (const std::string& problem : problems) std::cerr << app_.get_name() << ": " << problem << "\n";
    return kBadConfiguration;
  }

 private:
  // What is wrong with a text; nothing when it is fine.
  using TextCheck = std::function<std::string(const std::string&)>;

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

  std::string Variable(const std::string& name) const {
    std::string variable = prefix_;
    for (const char letter : name) variable += letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    return variable;
  }

  CLI::App app_;
  const std::string prefix_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::function<std::string()>> checks_;
};

}  // namespace example
