#include "engine/within.h"

#include <utility>

#include "engine/lane.h"

namespace brigade::engine {

Within::Within(Comm& comm, ProcessGroup group)
    : comm_(comm), before_(std::exchange(Comm::Lane::of(comm).over, std::move(group))) {}

Within::~Within() { Comm::Lane::of(comm_).over = std::move(before_); }

const Engine& engine_of(Comm& comm) { return *Comm::Lane::of(comm).run.engine; }

}  // namespace brigade::engine
