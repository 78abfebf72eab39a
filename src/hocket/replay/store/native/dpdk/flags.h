// Options of a command line: `--name value`, `--name=value`, with several values, or none.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "port.h"

namespace hocket {

class Flags {
 public:
  Flags(std::string program, std::string about);

  using Set = std::function<void(const std::string& value)>;

  // Adds an option; `set` is called with each of its values.
  void add(const std::string& name, const std::string& help, Set set);
  void add(const std::string& name, const std::string& help, std::string& value);
  void add(const std::string& name, const std::string& help, uint64_t& value);
  void add(const std::string& name, const std::string& help, double& value);
  // Adds an option without a value.
  void add_switch(const std::string& name, const std::string& help, bool& value);
  // Adds the options of every program with DPDK. Arguments after `--` go to EAL.
  void add(EalOptions& eal);

  // Throws std::invalid_argument with what was found and what exists. With --help, prints the
  // options and returns false.
  bool parse(int argc, char** argv);

 private:
  struct Flag {
    std::string name, help;
    bool has_value;
    Set set;
  };

  const Flag& find(const std::string& name) const;
  std::string names() const;

  std::string program_, about_;
  std::vector<Flag> flags_;
  std::vector<std::string>* rest_ = nullptr;
};

// Runs `work`, prints its error after the program's name, and returns the exit code for `main`.
int run_program(const char* name, void (*work)(int argc, char** argv), int argc, char** argv);

uint64_t parse_number(const std::string& name, const std::string& text);
double parse_real(const std::string& name, const std::string& text);

}  // namespace hocket
