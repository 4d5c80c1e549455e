#include "base/files/read_whole.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace brigade::base {

std::string read_whole(const std::string& path) {
  std::string text;
  // Nobody may ever write into a FIFO, and a device may have no end.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return text;
  struct stat info {};
  char buffer[4096];
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode)) {
    for (ssize_t count; (count = read(file, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(count));
  }
  close(file);
  return text;
}

}  // namespace brigade::base
