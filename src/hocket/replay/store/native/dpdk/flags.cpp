#include "flags.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace hocket {

Flags::Flags(std::string program, std::string about)
    : program_(std::move(program)), about_(std::move(about)) {}

void Flags::add(const std::string& name, const std::string& help, Set set) {
  flags_.push_back({name, help, true, std::move(set)});
}

void Flags::add(const std::string& name, const std::string& help, std::string& value) {
  add(name, help, [&value](const std::string& text) { value = text; });
}

void Flags::add(const std::string& name, const std::string& help, uint64_t& value) {
  add(name, help, [&value, name](const std::string& text) { value = parse_number(name, text); });
}

void Flags::add(const std::string& name, const std::string& help, double& value) {
  add(name, help, [&value, name](const std::string& text) { value = parse_real(name, text); });
}

void Flags::add_switch(const std::string& name, const std::string& help, bool& value) {
  flags_.push_back({name, help, false, [&value](const std::string&) { value = true; }});
}

void Flags::add(EalOptions& eal) {
  add("vdev", "a port: net_memif0,role=client,socket=PATH,socket-abstract=no, "
              "net_af_packet0,iface=NAME or net_af_xdp0,iface=NAME",
      [&eal](const std::string& text) { eal.devices.push_back(text); });
  add("allow", "a real NIC, by its PCI address; without, none is touched",
      [&eal](const std::string& text) { eal.allowed.push_back(text); });
  add("cores", "cores that it may run on, such as 0-1; by default all", eal.cores);
  add_switch("huge", "use huge pages", eal.huge);
  rest_ = &eal.more;
}

bool Flags::parse(int argc, char** argv) {
  const Flag* current = nullptr;
  bool has_value = true;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--" && rest_) {
      rest_->assign(argv + i + 1, argv + argc);
      break;
    }
    if (word == "--help" || word == "-h") {
      std::printf("usage: %s [OPTIONS]%s\n\n%s\n\n", program_.c_str(),
                  rest_ ? " [-- OPTIONS OF EAL]" : "", about_.c_str());
      for (const Flag& flag : flags_) {
        std::printf("  --%-20s %s\n", flag.name.c_str(), flag.help.c_str());
      }
      return false;
    }
    if (word.rfind("--", 0) == 0) {
      if (current && !has_value) throw std::invalid_argument("--" + current->name + " needs a value");
      const size_t equals = word.find('=');
      current = &find(word.substr(2, equals == std::string::npos ? equals : equals - 2));
      has_value = !current->has_value;
      if (!current->has_value) current->set("");
      if (equals != std::string::npos) {
        current->set(word.substr(equals + 1));
        has_value = true;
      }
    } else if (current && current->has_value) {
      current->set(word);
      has_value = true;
    } else {
      throw std::invalid_argument("`" + word + "` is no option: there are " + names());
    }
  }
  if (current && !has_value) throw std::invalid_argument("--" + current->name + " needs a value");
  return true;
}

const Flags::Flag& Flags::find(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag;
  }
  throw std::invalid_argument("there is no option --" + name + ": there are " + names());
}

std::string Flags::names() const {
  std::string all;
  for (const Flag& flag : flags_) all += (all.empty() ? "--" : ", --") + flag.name;
  return all;
}

uint64_t parse_number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0])) || *end || errno) {
    throw std::invalid_argument("--" + name + " is a whole number, found `" + text + "`");
  }
  return value;
}

double parse_real(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end) {
    throw std::invalid_argument("--" + name + " is a number, found `" + text + "`");
  }
  return value;
}

int run_program(const char* name, void (*work)(int argc, char** argv), int argc, char** argv) {
  try {
    work(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s.\n", name, error.what());
    return 1;
  }
}

}  // namespace hocket
