#include "train/model_options.h"

#include <array>

#include "base/option_spec.h"
#include "brigade/error.h"

namespace brigade::tool {

ModelOptions complete(ModelOptions options, const TrainData& data) {
  static constexpr std::array<std::string_view, 3> kModels{"mlp", "cnn", "transformer"};
  if (options.model.empty()) {
    options.model = data.kind == Kind::text ? "transformer" : "cnn";
  }
  if (std::ranges::find(kModels, options.model) == kModels.end()) {
    throw ConfigError("--model: no model named '" + options.model + "'" +
                      base::suggestion(options.model, kModels));
  }
  const bool text = data.kind == Kind::text;
  if ((options.model == "transformer") != text) {
    throw ConfigError("--model " + options.model + " does not suit --data " + data.name +
                      (text ? ": text needs the transformer"
                            : ": the transformer is for text:FILE; take mlp or cnn"));
  }
  if (options.sync_batch_norm && options.model != "cnn") {
    throw ConfigError("--sync-batch-norm is for --model cnn, and this is a " +
                      options.model);
  }
  if (options.width == 0) {
    options.width = options.model == "mlp" ? 128 : options.model == "cnn" ? 32 : 64;
  }
  if (text && options.width % kAttentionHeads != 0) {
    throw ConfigError("--width is " + std::to_string(options.width) +
                      "; of a transformer it must be a multiple of " +
                      std::to_string(kAttentionHeads));
  }
  return options;
}

}  // namespace brigade::tool
