#include "engine/failure_store.h"

#include <random>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade::engine {

c10d::Store& FailureStore::store() {
  std::lock_guard lock(mutex_);
  if (!store_) store_ = group_.store()->clone();
  return *store_;
}

std::string FailureStore::first_cause(const std::string& mine) {
  if (group_.size() == 1) return mine;
  try {
    return store().compareSet(key(), std::string(), mine);
  } catch (const std::exception&) {
    return mine;  // the store is gone as well
  }
}

std::optional<std::string> FailureStore::find() {
  try {
    if (store().check({key()})) return store().get_to_str(key());
  } catch (const std::exception&) {
    // No store to ask: the collectives themselves will fail.
  }
  return std::nullopt;
}

const std::string& FailureStore::identity() {
  std::call_once(identity_made_, [this] {
    std::random_device random;
    const std::string mine =
        name_ + "-" + std::to_string(random()) + "-" + std::to_string(random());
    identity_ = store().compareSet(name_ + "/identity", std::string(), mine);
  });
  return identity_;
}

}  // namespace brigade::engine
