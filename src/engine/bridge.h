// The one comm hook that a Reducer ever gets from us. It forwards each bucket to the
// engine, which runs the hook of the moment: so hooks can be exchanged while training.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/engine.h"

namespace c10d {
class CommHookInterface;
}

namespace brigade::engine {

// Names by parameter.
using Names = std::unordered_map<c10::TensorImpl*, std::string>;

std::unique_ptr<c10d::CommHookInterface> make_bridge(std::shared_ptr<Engine> engine,
                                                     std::shared_ptr<const Names> names);

}  // namespace brigade::engine
