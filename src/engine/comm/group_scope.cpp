#include <utility>

#include "brigade/compose_hooks.h"
#include "engine/comm/lane.h"

namespace brigade {

GroupScope::GroupScope(Comm& comm, ProcessGroup group)
    : comm_(comm), before_(std::exchange(Comm::Lane::of(comm).over, std::move(group))) {}

GroupScope::~GroupScope() { Comm::Lane::of(comm_).over = std::move(before_); }

}  // namespace brigade
