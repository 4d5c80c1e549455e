#include "plan/others_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "base/files/read_whole.h"

namespace brigade::tool {

OthersLoad::OthersLoad() : begin_(now()), begun_(std::chrono::steady_clock::now()) {}

OthersLoad::Seconds OthersLoad::now() {
  Seconds seconds;
  std::istringstream line(base::read_whole("/proc/stat"));
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft = 0;
  line >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft;
  if (line && name == "cpu") {
    seconds.all = (user + nice + system + interrupts + soft) /
                  static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage use{};
    getrusage(who, &use);
    for (const timeval& time : {use.ru_utime, use.ru_stime}) {
      seconds.own +=
          static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
  }
  return seconds;
}

double OthersLoad::share() const {
  const Seconds end = now();
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  const auto cores = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const double others = (end.all - begin_.all) - (end.own - begin_.own);
  return wall > 0 ? std::clamp(others / (wall * cores), 0.0, 1.0) : 0;
}

}  // namespace brigade::tool
