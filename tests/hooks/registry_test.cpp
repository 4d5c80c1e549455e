// Hooks by name: every name, option and composition, and the errors that teach them.
#include <gtest/gtest.h>

#include <set>

#include "brigade/brigade.h"
#include "brigade/hooks.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;

std::string refusal(const std::string& spec) {
  try {
    make_hook(spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError for '" + spec + "'";
}

constexpr const char* kKnown =
    " known: allreduce, fp16, bf16, quantize_per_tensor, quantize_per_channel, powersgd, "
    "batched_powersgd, noop, int8, int4, topk, randomk, fixed, rules, auto";

TEST(HookTable, IsCompleteAndEveryRowCanBeMade) {
  const std::vector<std::string_view> expected{"allreduce",
                                               "fp16",
                                               "bf16",
                                               "quantize_per_tensor",
                                               "quantize_per_channel",
                                               "powersgd",
                                               "batched_powersgd",
                                               "noop",
                                               "int8",
                                               "int4",
                                               "topk",
                                               "randomk",
                                               "fixed",
                                               "rules",
                                               "auto"};
  std::vector<std::string_view> names;
  for (const HookEntry& entry : hook_table()) {
    names.push_back(entry.name);
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    const auto hook = make_hook(entry.name);
    EXPECT_EQ(hook->name(), entry.name);
    EXPECT_EQ(hook->fingerprint().rfind(hook->name(), 0), 0u) << hook->fingerprint();
    for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
      EXPECT_NO_THROW(hook->check_dtype(dtype)) << entry.name;
  }
  EXPECT_EQ(names, expected);
}

TEST(HookTable, EveryOptionOfARowIsTakenAndShowsInTheFingerprint) {
  const std::map<std::string_view, std::string> values{
      {"rank", "3"},   {"start", "7"},    {"min_rate", "1.5"}, {"ef", "0"},
      {"warm", "0"},   {"eps", "0.25"},   {"seed", "9"},       {"batch", "1"},
      {"flat", "1"},   {"small", "1024"}, {"least", "fp16"},   {"among", "fp16"},
      {"rounds", "1"}, {"ratio", "0.25"}};
  for (const HookEntry& entry : hook_table()) {
    std::set<std::string> prints{make_hook(entry.name)->fingerprint()};
    for (std::string_view option : entry.options) {
      const std::string setting = std::string(option) + "=" + values.at(option);
      const auto hook = make_hook(std::string(entry.name) + ":" + setting);
      EXPECT_NE(hook->fingerprint().find(setting), std::string::npos)
          << hook->fingerprint();
      EXPECT_TRUE(prints.insert(hook->fingerprint()).second) << setting;
    }
  }
}

TEST(HookTable, PytorchsTypesAreRowsWithOptions) {
  using Type = DDPCommHookType;
  const std::map<Type, std::string_view> specs{
      {Type::ALLREDUCE, "allreduce"},
      {Type::FP16_COMPRESS, "fp16"},
      {Type::BF16_COMPRESS, "bf16"},
      {Type::QUANTIZE_PER_TENSOR, "quantize_per_tensor"},
      {Type::QUANTIZE_PER_CHANNEL, "quantize_per_channel"},
      {Type::POWER_SGD, "powersgd:rank=1"},
      {Type::POWER_SGD_RANK2, "powersgd:rank=2"},
      {Type::BATCHED_POWER_SGD, "batched_powersgd:rank=1"},
      {Type::BATCHED_POWER_SGD_RANK2, "batched_powersgd:rank=2"},
      {Type::NOOP, "noop"}};
  EXPECT_EQ(specs.size(), 10u);
  for (const auto& [type, spec] : specs) {
    EXPECT_EQ(hook_spec(type), spec);
    EXPECT_EQ(make_hook(type)->fingerprint(), make_hook(spec)->fingerprint());
  }
  EXPECT_THROW(hook_spec(static_cast<Type>(99)), ConfigError);
}

TEST(HookSpec, OptionsComeInAnyOrderAndFlagsInAnySpelling) {
  EXPECT_EQ(make_hook("powersgd:rank=2,start=10")->fingerprint(),
            make_hook("powersgd:start=10,rank=2")->fingerprint());
  EXPECT_EQ(make_hook("powersgd:")->fingerprint(), make_hook("powersgd")->fingerprint());
  for (const char* off : {"0", "false", "off"}) {
    EXPECT_NE(make_hook(std::string("powersgd:ef=") + off)->fingerprint().find("ef=0"),
              std::string::npos);
  }
  for (const char* on : {"1", "true", "on"}) {
    EXPECT_NE(make_hook(std::string("powersgd:batch=") + on)->fingerprint().find("batch=1"),
              std::string::npos);
  }
  EXPECT_EQ(make_hook("powersgd")->fingerprint(),
            "powersgd:rank=1,start=1000,min_rate=2,ef=1,warm=1,eps=0,seed=0,batch=0");
}

TEST(HookSpec, WrappersComposeWithAnyHook) {
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    for (const std::string wrapper : {"fp16", "bf16"}) {
      const auto hook = make_hook(wrapper + "+" + name);
      EXPECT_EQ(hook->name(), wrapper + "+" + name);
      EXPECT_EQ(hook->fingerprint(), wrapper + "+" + make_hook(name)->fingerprint());
    }
  }
  const auto hook = make_hook("fp16+powersgd:rank=2,start=5");
  EXPECT_EQ(hook->fingerprint(),
            "fp16+" + make_hook("powersgd:rank=2,start=5")->fingerprint());
  EXPECT_EQ(make_hook("bf16+fp16+allreduce")->name(), "bf16+fp16+allreduce");
}

TEST(HookSpec, AnUnknownNameListsTheKnownAndANearMissTheLikelyOne) {
  EXPECT_EQ(refusal("powersdg"),
            std::string("no hook named 'powersdg'; did you mean 'powersgd'?") + kKnown);
  EXPECT_EQ(refusal("int"),
            std::string("no hook named 'int'; did you mean 'int8'?") + kKnown);
  EXPECT_EQ(refusal("allreduce "),
            std::string("no hook named 'allreduce '; did you mean 'allreduce'?") + kKnown);
  EXPECT_EQ(refusal("gossip"), std::string("no hook named 'gossip';") + kKnown);
  EXPECT_EQ(refusal(""), std::string("no hook named '';") + kKnown);
  EXPECT_EQ(refusal("FP16"), std::string("no hook named 'FP16';") + kKnown);
  EXPECT_EQ(refusal(":rank=2"), std::string("no hook named '';") + kKnown);
}

TEST(HookSpec, AWrongOptionIsRefusedWithItsNameItsValueAndWhatIsExpected) {
  const std::string options =
      " known: rank, start, min_rate, ef, warm, eps, seed, batch,"
      " rounds";
  EXPECT_EQ(refusal("powersgd:rnak=2"), "hook 'powersgd' has no option 'rnak';" + options);
  EXPECT_EQ(refusal("powersgd:ran=2"),
            "hook 'powersgd' has no option 'ran'; did you mean 'rank'?" + options);
  EXPECT_EQ(refusal("powersgd:colour=2"),
            "hook 'powersgd' has no option 'colour';" + options);
  EXPECT_EQ(refusal("fp16:rank=2"), "hook 'fp16' has no option 'rank'; known: flat, small");
  EXPECT_EQ(refusal("noop:rank=2"), "hook 'noop' has no option 'rank': it has none");
  EXPECT_EQ(refusal("powersgd:rank=2,rank=3"),
            "hook 'powersgd': option 'rank' is given twice");
  EXPECT_EQ(refusal("powersgd:rank"),
            "hook 'powersgd': option 'rank' has no value; write rank=VALUE");
  for (const char* value : {"", "2x", "two", "1.5", " 2", "99999999999999999999"}) {
    EXPECT_EQ(
        refusal(std::string("powersgd:rank=") + value),
        std::string("hook 'powersgd': rank is '") + value + "', expected a whole number");
  }
  EXPECT_EQ(refusal("powersgd:eps=small"),
            "hook 'powersgd': eps is 'small', expected a number");
  EXPECT_EQ(refusal("powersgd:ef=yes"),
            "hook 'powersgd': ef is 'yes', expected 1 or 0 (also true, false, on, off)");
  EXPECT_EQ(refusal("powersgd:rank=1,,start=2"),
            "hook 'powersgd' has no option '';" + options);
}

TEST(HookSpec, OnlyWrappersStandBeforeAPlus) {
  EXPECT_EQ(refusal("int8+powersgd"),
            "hook 'int8' can't stand before '+'; known: fp16, bf16, node, small");
  EXPECT_EQ(refusal("fp16+"), std::string("no hook named '';") + kKnown);
  EXPECT_EQ(refusal("+fp16"), std::string("no hook named '';") + kKnown);
  EXPECT_EQ(refusal("fp16+powersdg"),
            std::string("no hook named 'powersdg'; did you mean 'powersgd'?") + kKnown);
  // An option of the wrapper is not one of the wrapped hook.
  EXPECT_EQ(refusal("fp16:rank=2+powersgd"),
            std::string("no hook named 'fp16:rank=2';") + kKnown);
}

TEST(HookSpec, AWrapperAroundAllreduceIsThePlainHook) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig(group, "", {{40, 30}, {700}});
    for (const auto& [plain, wrapped, tolerance] :
         {std::tuple{"fp16", "fp16+allreduce", 2e-3},
          std::tuple{"bf16", "bf16+allreduce", 1.6e-2}}) {
      rig.ddp->set_hook(make_hook(plain));
      const auto expected = rig.train(0);
      rig.ddp->set_hook(make_hook(wrapped));
      const auto results = rig.train(0);
      for (size_t index = 0; index < expected.size(); ++index) {
        const double scale = expected[index].abs().max().item<double>();
        EXPECT_TRUE(
            at::allclose(results[index], expected[index], tolerance, tolerance * scale));
        EXPECT_EQ(results[index].scalar_type(), at::kFloat);
      }
      EXPECT_LE(rig.error(results, 0), tolerance);
    }
  });
}

TEST(HookSpec, AGroupOfItsOwnCanBeGivenAsPytorchsState) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup pair = group.new_subgroups(2);
    Rig rig(group, "", {{6, 5}});
    register_ddp_comm_hook(DDPCommHookType::ALLREDUCE, rig.ddp, pair);
    const int first = group.rank() / 2 * 2;
    for (int64_t step = 0; step < 3; ++step) {
      const at::Tensor expected =
          (testing::coefficient({6, 5}, at::kFloat, first, step, 0) +
           testing::coefficient({6, 5}, at::kFloat, first + 1, step, 0)) /
          2;
      EXPECT_TRUE(at::allclose(rig.train(step)[0], expected, 1e-5, 1e-7));
    }
  });
}

// Computes the exact mean, under the name and arguments of the requested hook.
std::shared_ptr<Hook> named_mean(const std::string& name) {
  return make_hook(name, [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor gradients = bucket.buffer().div_(comm.size());
    co_await comm.all_reduce(gradients);
    co_return gradients;
  });
}

std::string refusal_to_register(const std::string& name, const HookFactory& factory) {
  try {
    register_hook(name, factory);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RegisteredHooks, AreMadeByNameWithTheirArgumentsAndBehindWrappers) {
  HookArguments seen;
  register_hook("my_mean", [&](const HookArguments& arguments) {
    seen = arguments;
    if (arguments.contains("bad")) throw ConfigError("my_mean: no option 'bad'");
    return named_mean("my_mean");
  });
  EXPECT_EQ(make_hook("my_mean")->name(), "my_mean");
  EXPECT_TRUE(seen.empty());
  make_hook("my_mean:k=3,text=a=b");
  EXPECT_EQ(seen, (HookArguments{{"k", "3"}, {"text", "a=b"}}));
  EXPECT_NO_THROW(make_hook("fp16+my_mean:k=1"));
  EXPECT_EQ(refusal("my_mean:bad=1"), "my_mean: no option 'bad'");
  EXPECT_EQ(refusal("my_mean:k"),
            "hook 'my_mean': option 'k': expected KEY=VALUE, each key once");
  EXPECT_NE(refusal("my_mena").find("did you mean 'my_mean'?"), std::string::npos);
  EXPECT_NE(refusal("my_mean+fp16").find("can't stand before '+'"), std::string::npos)
      << refusal("my_mean+fp16");
  // The library's own table is unchanged.
  for (const HookEntry& entry : hook_table()) EXPECT_NE(entry.name, "my_mean");
}

TEST(RegisteredHooks, NamesThatAreTakenOrCannotBeWrittenAreRefused) {
  const HookFactory factory = [](const HookArguments&) { return named_mean("again"); };
  EXPECT_EQ(refusal_to_register("again", factory), "");
  EXPECT_NE(refusal_to_register("again", factory).find("is registered already"),
            std::string::npos);
  EXPECT_NE(refusal_to_register("int8", factory).find("library's own"), std::string::npos);
  for (const char* name : {"", "a+b", "a:b", "a b", "a,b"})
    EXPECT_NE(refusal_to_register(name, factory).find("letters, digits"), std::string::npos)
        << name;
  EXPECT_NE(refusal_to_register("none", nullptr).find("without a factory"),
            std::string::npos);
}

}  // namespace
}  // namespace brigade
