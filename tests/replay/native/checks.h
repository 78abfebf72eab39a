// Checks and tests of a plain program: `program [part of a name]` runs them, and returns 1 if one
// fails.

#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

namespace checks {

inline std::atomic<int> failures{0};  // threads may fail

inline void check(bool holds, const char* file, int line, const char* expression) {
  // The first few say enough.
  if (!holds && ++failures <= 20) std::printf("%s:%d: %s\n", file, line, expression);
}

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int run(int argc, char** argv) {
  int ran = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
    const int before = failures;
    test.run();
    ++ran;
    if (failures > before) std::printf("%s FAILED\n", test.name);
    std::fflush(stdout);
  }
  std::printf("%d tests, %d failures\n", ran, failures.load());
  return failures || !ran;
}

}  // namespace checks

#define CHECK(...) checks::check((__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)

#define TEST(name)                                                  \
  void name();                                                      \
  [[maybe_unused]] const bool name##_is_listed =                    \
      (checks::tests().push_back({#name, &name}), true);            \
  void name()
