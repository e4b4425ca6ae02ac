// An Echo server as a process of its own, to be killed. Prints its port, and dies with its parent.

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "support/echo_service.h"

int main(int count, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  penstock::test::EchoServer server(penstock::test::EchoServerOptions{
      .echo = {.pod = count > 1 ? arguments[1] : "pod"}, .address = count > 2 ? arguments[2] : "127.0.0.1:0"});
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  for (;;) ::pause();
}
