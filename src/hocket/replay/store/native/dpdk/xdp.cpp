#include "xdp.h"

#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace hocket {

void detach_xdp(const std::string& interface) {
  // RTM_SETLINK with IFLA_XDP { IFLA_XDP_FD = -1 }.
  struct {
    nlmsghdr head;
    ifinfomsg link;
    nlattr xdp;
    nlattr program;
    int32_t none;
  } request{};
  request.link.ifi_index = static_cast<int>(if_nametoindex(interface.c_str()));
  if (!request.link.ifi_index) return;
  request.head.nlmsg_len = sizeof(request);
  request.head.nlmsg_type = RTM_SETLINK;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  request.program = {sizeof(nlattr) + sizeof(int32_t), IFLA_XDP_FD};
  request.xdp = {static_cast<uint16_t>(sizeof(nlattr) + request.program.nla_len),
                 IFLA_XDP | NLA_F_NESTED};
  request.none = -1;
  const int file = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (file < 0) return;
  char answer[512];
  // Waits for the answer, so that the program is gone when this returns.
  if (send(file, &request, sizeof(request), 0) > 0 && recv(file, answer, sizeof(answer), 0) < 0) {
  }
  close(file);
}

}  // namespace hocket
