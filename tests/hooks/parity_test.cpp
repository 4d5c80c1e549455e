// Equal results to PyTorch's own hooks, where those work: two ranks, one bucket.
// tests/data/make_hooks_reference.py wrote the numbers.
#include <gtest/gtest.h>

#include <fstream>

#include "brigade/brigade.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Rig;
using testing::run_ranks;
using testing::Shapes;

const Shapes kParityShapes{{12, 10}, {8, 20}, {7}};

at::Tensor reference(const std::string& name) {
  std::ifstream file(BRIGADE_SOURCE_DIR "/tests/data/hooks_reference.txt");
  std::string word;
  size_t count = 0;
  while (file >> word >> count) {
    std::vector<float> values(count);
    for (float& value : values) file >> value;
    if (word == name) return at::tensor(values);
  }
  throw std::runtime_error("hooks_reference.txt has no " + name);
}

std::vector<at::Tensor> inputs(int rank, int64_t step) {
  std::vector<at::Tensor> list;
  for (size_t index = 0; index < kParityShapes.size(); ++index) {
    const at::Tensor place =
        at::arange(c10::multiply_integers(kParityShapes[index]), at::kDouble);
    const at::Tensor wave =
        at::sin(place * (0.37 + 0.11 * static_cast<double>(index)) + 1.7 * rank +
                0.9 * static_cast<double>(step) + static_cast<double>(index));
    list.push_back((wave * at::cos(place * place * 0.013 + step))
                       .view(kParityShapes[index])
                       .to(at::kFloat));
  }
  return list;
}

Rig one_bucket(const ProcessGroup& group, const std::string& spec) {
  return Rig(group, spec, kParityShapes, at::kFloat, {.bucket_cap_mb = 25.0});
}

at::Tensor train(Rig& rig, int64_t step) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& gradient : rig.train_on(inputs(rig.group.rank(), step)))
    parts.push_back(gradient.flatten());
  return at::cat(parts);
}

// The tolerance is in units of the largest gradient, which is about 1.
void expect_equal(const at::Tensor& result, const std::string& name, double tolerance) {
  const at::Tensor expected = reference(name);
  ASSERT_EQ(result.numel(), expected.numel());
  EXPECT_LE((result - expected).abs().max().item<double>(), tolerance) << name;
}

TEST(PythonParity, AllreduceGivesTheSame) {
  run_ranks(2, [](ProcessGroup group) {
    Rig rig = one_bucket(group, "allreduce");
    train(rig, 0);
    expect_equal(train(rig, 1), "allreduce", 1e-7);
  });
}

// PyTorch adds in half precision, we in single precision: one rounding of difference.
TEST(PythonParity, HalvesGiveTheSameUpToARounding) {
  run_ranks(2, [](ProcessGroup group) {
    Rig fp16 = one_bucket(group, "fp16");
    train(fp16, 0);
    expect_equal(train(fp16, 1), "fp16", 1e-3);
    Rig bf16 = one_bucket(group, "bf16");
    train(bf16, 0);
    expect_equal(train(bf16, 1), "bf16", 8e-3);
  });
}

TEST(PythonParity, PowerSgdGivesTheSameBeforeItsStart) {
  run_ranks(2, [](ProcessGroup group) {
    for (const std::string rank : {"1", "2"}) {
      Rig rig = one_bucket(group, "powersgd:start=2,rank=" + rank);
      for (int64_t step = 0; step < 2; ++step)
        expect_equal(train(rig, step), "powersgd" + rank + ".step" + std::to_string(step),
                     1e-7);
    }
  });
}

// Starts from PyTorch's own Q and errors after its random start, and takes three steps.
TEST(PythonParity, PowerSgdGoesOnFromPythonsMemoryAsPythonDoes) {
  run_ranks(2, [](ProcessGroup group) {
    for (const std::string rank : {"1", "2"}) {
      const std::string name = "powersgd" + rank;
      Rig rig = one_bucket(group, "powersgd:start=2,rank=" + rank);
      HookState state = rig.ddp->hook()->state();
      state.values["iteration"] = "4";
      for (size_t index : {0, 1}) {
        const std::string parameter = "p" + std::to_string(index);
        state.tensors["q." + parameter] =
            reference(name + ".q." + parameter).view({kParityShapes[index][1], -1});
        state.tensors[kErrorPrefix + parameter] =
            reference(name + ".error." + parameter + ".rank" + std::to_string(group.rank()))
                .view(kParityShapes[index]);
      }
      rig.ddp->hook()->load_state(state);
      for (int64_t step = 4; step < 7; ++step) {
        expect_equal(train(rig, step), name + ".step" + std::to_string(step), 2e-5);
      }
    }
  });
}

}  // namespace
}  // namespace brigade
