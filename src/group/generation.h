// The group of one generation of an elastic job: its members, under a number of its own.
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
  // The store's host, as this process reaches it.
  std::string host;
  // Different for each generation, equal on its members.
  std::string prefix;
  int rank = 0;
  int size = 1;
  // Which of its host's devices this rank uses.
  int device = 0;
  std::string backend = "auto";
  std::chrono::milliseconds timeout{};
  std::shared_ptr<AbortSwitch> abort;
};

// Collective over the members. Everything that waits in the group, in this function and in
// those that make groups from it too, ends when plan.abort is thrown.
ProcessGroup join_generation(const GenerationPlan& plan);

}  // namespace brigade::group
