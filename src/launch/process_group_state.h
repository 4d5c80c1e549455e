// What a ProcessGroup handle points at. Shared by the files of this folder only.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>

#include "brigade/process_group.h"
#include "torch_port/gloo_backend.h"

namespace brigade {

struct ProcessGroup::State {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::string backend;
  std::chrono::milliseconds timeout;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  torch_port::GlooOptions gloo;
  // Counters that are equal on all ranks because the calls that advance them are collective: they make keys and prefixes unique.
  std::atomic<int> groups_made{0};
  std::atomic<int> exchanges{0};
};

}  // namespace brigade
