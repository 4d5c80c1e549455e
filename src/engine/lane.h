// Where a Comm stands on the line.
#pragma once
#include "brigade/hook.h"
#include "engine/line.h"

namespace brigade {

struct Comm::Lane {
  engine::Run& run;
  engine::Key key;
  size_t station = 0;  // whose thread runs the lane's present stretch
};

}  // namespace brigade
