// A Comm's position in the pipeline.
#pragma once
#include "brigade/hook.h"
#include "brigade/process_group.h"
#include "engine/bucket_run.h"
#include "engine/comm/device_lanes.h"
#include "engine/engine.h"
#include "engine/pipeline.h"

namespace brigade {

struct Comm::Lane {
  engine::BucketRun& run;
  engine::Order order;
  size_t station = 0;      // its thread runs the lane's present stage
  ProcessGroup over = {};  // the group of GroupScope; empty: the engine's
  // The orders that follow the splits around this lane.
  std::vector<engine::Order> after = {};
  std::string label = {};  // its label, see TrafficLabel; empty: none

  // Goes to the next station. The code after a split continues at the station where its
  // furthest part ends. That is no longer this station, so the code's order passes here,
  // and the next bucket need not wait for it.
  void move_on() {
    for (const engine::Order& later : after)
      run.pipeline->pass(later, station, station + 1);
    ++station;
  }

  // Begin and end stages of a hook that runs inline. They do nothing unless lanes have
  // streams of their own (device_lanes.h). REQUIRES, to begin: the current stream is
  // ordered after everything that the lane has awaited.
  void begin_stage_inline();
  void end_stretch_inline();
  engine::DevicePoint began = nullptr, ended = nullptr;  // the last stage's, for the trace

  const ProcessGroup& group() const { return over ? over : run.engine->group(); }
  static Lane& of(Comm& comm) { return *comm.lane_; }
};

}  // namespace brigade
