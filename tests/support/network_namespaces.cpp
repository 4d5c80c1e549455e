#include "support/network_namespaces.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace brigade::testing {

std::string why_no_network_namespaces() {
  // Tries it in a separate process, so that this one stays where it is.
  const pid_t child = fork();
  if (child < 0) return std::string("cannot fork: ") + std::strerror(errno);
  if (child == 0) _exit(unshare(CLONE_NEWNET) == 0 ? 0 : errno);
  int status = 0;
  waitpid(child, &status, 0);
  const int error = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  if (error == 0) return "";
  return std::string("no network namespaces are permitted here: ") + std::strerror(error);
}

}  // namespace brigade::testing
