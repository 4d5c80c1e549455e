// Where a Comm stands in the pipeline.
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
  size_t station = 0;      // whose thread runs the lane's present stage
  ProcessGroup over = {};  // whose ranks take part, see GroupScope; empty: the engine's
  // Orders of what comes after the splits that the lane is a part of.
  std::vector<engine::Order> after = {};
  std::string label = {};  // what it counts as, see TrafficLabel; empty: nothing by itself

  // To the next station. The code behind a split runs on at the station where the split's
  // furthest part has ended. As this lane moves on, that is no longer this station: it is
  // passed here, so that the next bucket need not wait for it.
  void move_on() {
    for (const engine::Order& later : after)
      run.pipeline->pass(later, station, station + 1);
    ++station;
  }

  // Where the hook runs on, on the thread that it is on. They do nothing unless lanes have
  // streams of their own (device_lanes.h). REQUIRES, to begin: the current stream is
  // ordered behind what the lane has awaited.
  void begin_stage_inline();
  void end_stretch_inline();
  engine::DevicePoint began = nullptr, ended = nullptr;  // the last one, for the trace

  const ProcessGroup& group() const { return over ? over : run.engine->group(); }
  static Lane& of(Comm& comm) { return *comm.lane_; }
};

}  // namespace brigade
