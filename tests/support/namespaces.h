// Whether tests may make network namespaces here.
#pragma once
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace brigade::testing {

// Asks the system, in a process of its own. Empty if it permits network namespaces, else
// its reason. A test may skip for this reason only: whatever fails later is a failure.
inline std::string why_no_network_namespaces() {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWNET) == 0 ? 0 : errno);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return std::strerror(errno);
  const int reason = WIFEXITED(status) ? WEXITSTATUS(status) : EFAULT;
  return reason == 0 ? "" : std::strerror(reason);
}

}  // namespace brigade::testing
