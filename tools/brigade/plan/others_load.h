// How much of this machine other programs use while something is measured.
#pragma once
#include <chrono>

namespace brigade::tool {

// From its making on. Children count as this process's own once they have been waited for.
class OthersLoad {
 public:
  OthersLoad();
  // Of all cores, 0 to 1; 0 where the system does not tell.
  double share() const;

 private:
  struct Seconds {
    double all = 0;  // of all cores, busy with anything
    double own = 0;
  };
  static Seconds now();

  Seconds begin_;
  std::chrono::steady_clock::time_point begun_;
};

}  // namespace brigade::tool
