#include "engine/bridge.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace brigade::engine {
namespace {

class Bridge : public c10d::CommHookInterface {
 public:
  explicit Bridge(BridgeCalls calls) : calls_(std::move(calls)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    if (calls_.before) calls_.before(bucket);
    return calls_.run(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& value) override {
    return calls_.result ? calls_.result(value) : value.toTensor();
  }

 private:
  const BridgeCalls calls_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_bridge(BridgeCalls calls) {
  return std::make_unique<Bridge>(std::move(calls));
}

void ParameterNames::set(const at::Tensor& parameter, std::string name) {
  names_[parameter.unsafeGetTensorImpl()] = std::move(name);
}

std::vector<std::string> ParameterNames::of(const c10d::GradBucket& bucket) {
  std::vector<std::string> names;
  for (const at::Tensor& parameter : bucket.getParameters()) names.push_back(of(parameter));
  return names;
}

const std::string& ParameterNames::of(const at::Tensor& parameter) {
  auto [found, fresh] = names_.try_emplace(parameter.unsafeGetTensorImpl());
  if (fresh) found->second = "parameter" + std::to_string(unnamed_++);
  return found->second;
}

}  // namespace brigade::engine
