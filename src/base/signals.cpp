#include "base/signals.h"

#include <initializer_list>

namespace brigade::base {

sigset_t ending_signals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ending, number);
  return ending;
}

}  // namespace brigade::base
