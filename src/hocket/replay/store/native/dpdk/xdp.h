// The XDP program of a network interface, which outlives a process that is killed.

#pragma once

#include <string>

namespace hocket {

// Takes it off, if there is one and we may. Nothing is said where it cannot be done: AF_XDP itself
// then says why.
void detach_xdp(const std::string& interface);

}  // namespace hocket
