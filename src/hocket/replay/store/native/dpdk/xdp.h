// The XDP program of a network interface, which stays when its process is killed.

#pragma once

#include <string>

namespace hocket {

// Removes the program, if there is one and we may. If that fails it is silent, because AF_XDP
// itself reports why.
void detach_xdp(const std::string& interface);

}  // namespace hocket
