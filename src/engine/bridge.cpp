#include "engine/bridge.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace brigade::engine {
namespace {

class Bridge : public c10d::CommHookInterface {
 public:
  Bridge(std::shared_ptr<Engine> engine, std::shared_ptr<const Names> names)
      : engine_(std::move(engine)), names_(std::move(names)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<std::string> names;
    for (const at::Tensor& parameter : bucket.getParameters()) {
      auto found = names_->find(parameter.unsafeGetTensorImpl());
      names.push_back(found == names_->end() ? std::string() : found->second);
    }
    // A copy: the Reducer's bucket lives on its stack.
    return engine_->run(Bucket(bucket, std::move(names)));
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return result.toTensor();
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Names> names_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_bridge(std::shared_ptr<Engine> engine,
                                                     std::shared_ptr<const Names> names) {
  return std::make_unique<Bridge>(std::move(engine), std::move(names));
}

}  // namespace brigade::engine
