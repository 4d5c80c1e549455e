#include "brigade/process_group.h"

#include <thread>

#include "group/process_group_state.h"

namespace brigade {
ProcessGroup::State::~State() {
  if (backend == "nccl" && !wrapped && group) {
    try {
      // Without shutdown(), NCCL warns about leaks at exit.
      group->getBackend(c10::DeviceType::CUDA)->shutdown();
    } catch (const std::exception&) {
      // Its connections are gone already, so there is nothing to report.
    }
  }
  // Gloo's destructor waits for aborted collectives, for their whole time limit.
  if (abort && abort->aborted() && group)
    std::thread([left = std::move(group)]() mutable { left.reset(); }).detach();
}

std::string ProcessGroup::unique_name(const std::string& what) const {
  return what + std::to_string(state_->names_given++);
}

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size; }
int ProcessGroup::number_in_job(int rank) const {
  return state_->world_ranks.at(static_cast<size_t>(rank));
}
const std::string& ProcessGroup::backend() const { return state_->backend; }
bool ProcessGroup::works_on_device() const { return state_->backend == "nccl"; }
std::chrono::milliseconds ProcessGroup::timeout() const { return state_->timeout; }
int ProcessGroup::local_rank() const { return state_->local_rank; }
int ProcessGroup::local_size() const { return state_->local_size; }
const HostLayout& ProcessGroup::layout() const { return state_->layout; }
const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
  return state_->group;
}
const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const { return state_->store; }

std::vector<std::string> ProcessGroup::gather_texts(const std::string& what,
                                                    const std::string& mine) const {
  return group::gather_texts(*state_, what, mine, state_->timeout);
}

void ProcessGroup::barrier(std::optional<std::chrono::milliseconds> timeout) const {
  group::gather_texts(*state_, "barrier", "", timeout.value_or(state_->timeout));
}

}  // namespace brigade
