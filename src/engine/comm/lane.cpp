#include "engine/comm/lane.h"

namespace brigade {

void Comm::Lane::begin_stretch_inline() {
  if (!run.device_lanes) return;
  run.device_lanes->begin_stretch(station);
  began = run.device_point();
}

void Comm::Lane::end_stretch_inline() {
  if (!run.device_lanes) return;
  run.device_lanes->end_stretch(station);
  ended = run.device_point();
  run.note(TraceEvent::Kind::compute, station, order, began, ended);
}

}  // namespace brigade
