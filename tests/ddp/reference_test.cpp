// Equality with PyTorch's own DDP and sampler; tests/data/make_ddp_reference.py wrote their
// numbers.
#include <fstream>
#include <sstream>

#include "brigade/data.h"
#include "ddp/models.h"

namespace brigade::testing {
namespace {

std::string data_file(const char* name) {
  return std::string(BRIGADE_SOURCE_DIR) + "/tests/data/" + name;
}

// The numbers of one line of ddp_reference.txt, in the order of the parameters.
torch::Tensor reference(const std::string& name) {
  std::ifstream file(data_file("ddp_reference.txt"));
  std::string word;
  size_t count = 0;
  while (file >> word >> count) {
    std::vector<double> values(count);
    for (double& value : values) file >> value;
    if (word == name) return torch::tensor(values, torch::kDouble);
  }
  throw std::runtime_error("ddp_reference.txt has no " + name);
}

void set_parameters(torch::nn::Module& module, const torch::Tensor& flat) {
  torch::NoGradGuard no_grad;
  int64_t at = 0;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(flat.narrow(0, at, parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
}

torch::Tensor flat(const torch::nn::Module& module, bool gradients = false) {
  std::vector<torch::Tensor> parts;
  for (const auto& parameter : module.parameters()) {
    parts.push_back((gradients ? parameter.grad() : parameter.detach()).flatten());
  }
  return torch::cat(parts);
}

template <class Ddp>
void step(Ddp& ddp, torch::optim::SGD& sgd, int number, const ProcessGroup& group) {
  ddp->zero_grad();
  auto x = share(batch(number, 12), group);
  torch::mse_loss(ddp(x), share(target(number, 12), group)).backward();
  sgd.step();
}

TEST(PythonEquality, SixStepsGiveTheWeightsAndGradientsOfPythonsDdp) {
  run_ranks(2, [](ProcessGroup group) {
    Net net;
    set_parameters(*net, reference("initial"));
    DistributedDataParallel ddp(
        net, group, {.bucket_cap_mb = kSmallBucket, .gradient_as_bucket_view = true});
    torch::optim::SGD sgd(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int number = 0; number < 6; ++number) step(ddp, sgd, number, group);
    EXPECT_LE(distance(flat(*net), reference("trained")), 1e-12);
    EXPECT_LE(distance(flat(*net, true), reference("gradients")), 1e-12);
  });
}

TEST(PythonEquality, UnevenInputsGiveTheWeightsOfPythonsJoin) {
  for (bool divide : {true, false}) {
    run_ranks(2, [divide](ProcessGroup group) {
      Net net;
      set_parameters(*net, reference("initial"));
      DistributedDataParallel ddp(net, group);
      torch::optim::SGD sgd(ddp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      auto loop = [&] {
        for (int number = 0; number < (group.rank() == 0 ? 3 : 5); ++number) {
          step(ddp, sgd, number, group);
        }
      };
      ddp->join(loop, {.divide_by_initial_world_size = divide});
      EXPECT_LE(distance(flat(*net), reference(divide ? "uneven_1" : "uneven_0")), 1e-12);
    });
  }
}

TEST(Sampler, GivesTheIndicesOfPythonsSampler) {
  run_ranks(1, [](ProcessGroup) {
    std::ifstream file(data_file("sampler_reference.txt"));
    std::string line;
    std::getline(file, line);  // the column names
    int rows = 0;
    while (std::getline(file, line)) {
      std::istringstream in(line);
      size_t size, count;
      int ranks, rank;
      uint64_t epoch;
      SamplerOptions options;
      in >> size >> ranks >> rank >> options.shuffle >> options.seed >> epoch >>
          options.drop_last >> count;
      std::vector<size_t> expected(count);
      for (size_t& index : expected) in >> index;
      DistributedSampler sampler(size, ranks, rank, options);
      sampler.set_epoch(epoch);
      EXPECT_EQ(sampler.indices(), expected) << line;
      EXPECT_EQ(sampler.size(), count);
      ++rows;
    }
    EXPECT_EQ(rows, 400);
  });
}

TEST(Sampler, GivesBatchesAndBeginsAnewAfterReset) {
  run_ranks(2, [](ProcessGroup group) {
    DistributedSampler sampler(11, group, {.seed = 3});
    for (int round = 0; round < 2; ++round) {
      std::vector<size_t> drawn;
      while (auto indices = sampler.next(4)) {
        drawn.insert(drawn.end(), indices->begin(), indices->end());
        EXPECT_EQ(sampler.position(), drawn.size());
      }
      EXPECT_EQ(drawn, sampler.indices());
      sampler.reset();
      EXPECT_EQ(sampler.position(), 0U);
    }
    sampler.reset(5);
    EXPECT_EQ(sampler.size(), 3U);
    EXPECT_EQ(DistributedSampler(0, group).size(), 0U);
  });
}

TEST(Sampler, IsSavedAndLoadedInTheMiddleOfAnEpoch) {
  run_ranks(1, [](ProcessGroup) {
    DistributedSampler sampler(20, 2, 1);
    sampler.set_epoch(4);
    sampler.next(3);
    torch::serialize::OutputArchive out;
    sampler.save(out);
    std::stringstream file;
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    DistributedSampler other(20, 2, 1);
    other.load(in);
    EXPECT_EQ(other.epoch(), 4U);
    EXPECT_EQ(other.next(5), sampler.next(5));
  });
}

TEST(Sampler, DrivesADataLoaderOfLibTorch) {
  run_ranks(2, [](ProcessGroup group) {
    auto data = torch::data::datasets::TensorDataset(torch::arange(10))
                    .map(torch::data::transforms::Stack<torch::data::TensorExample>());
    DistributedSampler sampler(10, group, {.shuffle = false});
    auto loader = torch::data::make_data_loader(data, sampler, 2);
    std::vector<int64_t> seen;
    for (auto& example : *loader) {
      for (int64_t i = 0; i < example.data.size(0); ++i) {
        seen.push_back(example.data[i].item<int64_t>());
      }
    }
    ASSERT_EQ(seen.size(), 5U);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(seen[i], 2 * i + group.rank());
  });
}

TEST(Sampler, RefusesARankOutsideOfTheGroup) {
  expect_contains(thrown_text<ConfigError>([] { DistributedSampler(10, 2, 2); }),
                  "rank 2 of 2");
  expect_contains(thrown_text<ConfigError>([] { DistributedSampler(10, 2, -1); }),
                  "rank -1");
  expect_contains(thrown_text<ConfigError>([] { DistributedSampler(10, 0, 0); }), "of 0");
}

}  // namespace
}  // namespace brigade::testing
