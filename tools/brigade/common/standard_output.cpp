#include "common/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "brigade/error.h"

namespace brigade::tool {

void occupy_standard_streams() {
  for (const int fd : {0, 1, 2}) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The wrong direction, so that using it stays an error. open() gives the lowest number.
    if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

void check_standard_output() {
  const bool lost_before = std::ferror(stdout) != 0 || std::cout.bad();
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !lost_before && !std::cout.bad()) return;
  const std::string why = errno ? std::string(": ") + std::strerror(errno) : "";
  throw Error("what was to be printed could not all be written to standard output" + why);
}

}  // namespace brigade::tool
