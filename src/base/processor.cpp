#include "base/processor.h"

#include "base/input_file.h"

namespace brigade::base {

std::string processor_name() {
  const std::string text = read_whole("/proc/cpuinfo");
  const size_t line = text.find("model name");
  if (line == std::string::npos) return "unknown";
  const size_t begin = text.find(": ", line) + 2;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace brigade::base
