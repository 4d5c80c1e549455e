#include "checkpoint/buckets.h"

#include <nlohmann/json.hpp>

#include "brigade/checkpoint.h"

namespace brigade {
namespace checkpoint {

std::string text_of(const std::vector<std::vector<std::string>>& buckets) {
  return nlohmann::json(buckets).dump();
}

std::vector<std::vector<std::string>> buckets_of(const std::string& text) try {
  return nlohmann::json::parse(text).get<std::vector<std::vector<std::string>>>();
} catch (const nlohmann::json::exception& error) {
  throw CheckpointError(std::string("corrupt: the layout of the buckets cannot be read: ") +
                        error.what());
}

}  // namespace checkpoint

CheckpointPart bucket_part(DdpCore& core) {
  CheckpointPart part{.name = checkpoint::kBucketPart};
  part.save = [&core] {
    // After the first iteration the Reducer makes its buckets anew, in the next forward
    // pass: a run that resumes here must begin with those that this run will go on with.
    core.rebuild_buckets();
    PartState state;
    state.values["layout"] = checkpoint::text_of(core.logging_data().bucket_parameters);
    return state;
  };
  part.load = [](const SavedPart&) { return [] {}; };
  return part;
}

}  // namespace brigade
