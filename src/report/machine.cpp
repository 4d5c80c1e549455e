#include <sys/utsname.h>
#include <torch/version.h>

#include <array>
#include <ctime>
#include <thread>

#include "base/processor.h"
#include "brigade/report.h"

namespace brigade::report {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts);
  return text.data();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> machine_setup() {
  utsname system{};
  uname(&system);
  return {{"version", "brigade " BRIGADE_VERSION ", LibTorch " TORCH_VERSION},
          {"processor", base::processor_name() + ", " +
                            std::to_string(std::thread::hardware_concurrency()) + " cores"},
          {"system", std::string(system.sysname) + " " + system.release},
          {"date", today()}};
}

}  // namespace brigade::report
