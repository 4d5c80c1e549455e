#include <charconv>

#include "brigade/checkpoint.h"
#include "brigade/local_sgd.h"

namespace brigade {
namespace {

constexpr const char* kStep = "step";

// A part that holds a count only.
CheckpointPart count_part(std::string name, std::function<int64_t()> get,
                          std::function<void(int64_t)> set) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [get] {
    PartState state;
    state.values[kStep] = std::to_string(get());
    return state;
  };
  part.load = [set](const SavedPart& saved) {
    const auto& values = saved.states.at(0).values;
    const auto found = values.find(kStep);
    const std::string text = found == values.end() ? "nothing" : found->second;
    int64_t step = -1;
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, step).ptr != end || step < 0)
      throw CheckpointError("its step is '" + text + "', which is no count");
    return [set, step] { set(step); };
  };
  return part;
}

// Here it is the checkpoint's fault if a state is refused.
template <class Read>
std::function<void()> checked(Read read) try {
  return read();
} catch (const ConfigError& error) {
  throw CheckpointError(error.what());
}

}  // namespace

CheckpointPart averager_part(ModelAverager& averager, std::string name) {
  return count_part(
      std::move(name), [&averager] { return averager.step(); },
      [&averager](int64_t step) { averager.set_step(step); });
}

CheckpointPart local_sgd_part(optim::LocalSGD& local, std::string name) {
  return count_part(
      std::move(name), [&local] { return local.steps(); },
      [&local](int64_t steps) { local.set_steps(steps); });
}

std::vector<CheckpointPart> diloco_parts(optim::DiLoCo& diloco, std::string name) {
  CheckpointPart shared{.name = name};
  shared.save = [&diloco] { return diloco.state(); };
  shared.load = [&diloco](SavedPart saved) {
    return checked([&] { return diloco.read_state(std::move(saved.states.at(0))); });
  };
  CheckpointPart of_rank{.name = name + ".rank", .per_rank = true};
  of_rank.save = [&diloco] { return diloco.rank_state(); };
  of_rank.load = [&diloco](SavedPart saved) {
    return checked([&] { return diloco.read_rank_state(std::move(saved.states)); });
  };
  return {std::move(shared), std::move(of_rank)};
}

CheckpointPart per_rank(CheckpointPart part) {
  part.per_rank = true;
  return part;
}

}  // namespace brigade
