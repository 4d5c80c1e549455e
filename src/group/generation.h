// Makes the group of one generation of an elastic job.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "brigade/process_group.h"
#include "group/abort_switch.h"

namespace brigade::group {

struct GenerationPlan {
  c10::intrusive_ptr<c10d::Store> store;
  // The address of the store's host from this process.
  std::string host;
  // Different for each generation, equal on its members.
  std::string prefix;
  int rank = 0;
  int size = 1;
  // The number of this rank's device on its host.
  int device = 0;
  std::string backend = "auto";
  std::chrono::milliseconds timeout{};
  std::shared_ptr<AbortSwitch> abort;
};

// Collective over the members. All waiting in the group, also in this function and in those
// that make groups from it, ends when plan.abort aborts.
ProcessGroup join_generation(const GenerationPlan& plan);

}  // namespace brigade::group
