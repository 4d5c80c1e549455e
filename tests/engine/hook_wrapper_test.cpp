// Hooks around other hooks, as users write them.
#include <gtest/gtest.h>

#include "brigade/compose_hooks.h"
#include "engine/buckets.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using engine::Engine;
using testing::make_bucket;
using testing::run_ranks;

// Keeps the arguments of its calls.
class Probe : public Hook {
 public:
  std::string name() const override { return "probe"; }
  std::string fingerprint() const override { return "probe:level=3"; }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    ++buckets;
    return average(std::move(bucket), comm);
  }
  void begin_pass(const HookPass& pass) override { complete = pass.complete; }
  bool takes_sparse() const override { return sparse; }
  HookState state() const override { return {{}, {{"key", "value"}}}; }
  void load_state(const HookState& state) override { loaded = state.values.at("key"); }
  void reset() override { loaded = "reset"; }
  void check_dtype(at::ScalarType dtype) const override {
    if (dtype == at::kInt) throw ConfigError("no integers");
  }

  int buckets = 0;
  bool complete = true, sparse = false;
  std::string loaded;
};

class Doubled : public HookWrapper {
 public:
  using HookWrapper::HookWrapper;
  std::string name() const override { return "doubled+" + inner().name(); }
  Task<at::Tensor> reduce(Bucket bucket, Comm& comm) override {
    at::Tensor result = co_await reduce_inner(bucket, comm);
    co_return result * 2;
  }
};

TEST(HookWrapper, PassesOnEverythingThatItDoesNotOverride) {
  auto probe = std::make_shared<Probe>();
  Doubled doubled(probe);
  Hook& hook = doubled;
  EXPECT_EQ(hook.name(), "doubled+probe");
  EXPECT_EQ(hook.fingerprint(), "doubled+probe around probe:level=3");
  hook.begin_pass({.complete = false});
  EXPECT_FALSE(probe->complete);
  EXPECT_FALSE(hook.takes_sparse());
  probe->sparse = true;
  EXPECT_TRUE(hook.takes_sparse());
  EXPECT_EQ(hook.state().values.at("key"), "value");
  hook.load_state({{}, {{"key", "other"}}});
  EXPECT_EQ(probe->loaded, "other");
  hook.reset();
  EXPECT_EQ(probe->loaded, "reset");
  EXPECT_THROW(hook.check_dtype(at::kInt), ConfigError);
  EXPECT_NO_THROW(hook.check_dtype(at::kFloat));
  EXPECT_FALSE(hook.is_plain_mean()) << "not even around one";
}

TEST(HookWrapper, NeedsAnInnerHook) { EXPECT_THROW(Doubled(nullptr), ConfigError); }

// Takes sparse buckets even if the inner hook does not.
class TakesAll : public Doubled {
 public:
  using Doubled::Doubled;
  bool takes_sparse() const override { return true; }
};

TEST(HookWrapper, GivesTheInnerHookItsBucketsAndAveragesSparseOnesThatItDoesNotTake) {
  run_ranks(2, [](ProcessGroup group) {
    auto probe = std::make_shared<Probe>();
    auto engine = Engine::make(group, "wrapper");
    engine->set_hook(std::make_shared<TakesAll>(probe));
    auto dense = engine->run(make_bucket(0, 2, at::full({3}, 1.0 + group.rank())));
    at::Tensor rows = at::full({4}, 1.0 + group.rank()).to_sparse();
    auto sparse = engine->run(make_bucket(1, 2, rows));
    dense->waitAndThrow();
    sparse->waitAndThrow();
    EXPECT_TRUE(at::equal(dense->value().toTensor(), at::full({3}, 3.0)));
    EXPECT_TRUE(at::equal(sparse->value().toTensor().to_dense(), at::full({4}, 3.0)));
    EXPECT_EQ(probe->buckets, 1);
    engine->close();
  });
}

}  // namespace
}  // namespace brigade
