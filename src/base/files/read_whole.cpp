#include "base/files/read_whole.h"

#include <fcntl.h>
#include <unistd.h>

namespace brigade::base {

std::string read_whole(const std::string& path) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char buffer[4096];
  for (ssize_t count; (count = read(file, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(count));
  close(file);
  return text;
}

}  // namespace brigade::base
