// The hook of local SGD averages over all ranks before the start, then over few.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "brigade/hooks.h"
#include "brigade/local_sgd.h"
#include "local_sgd/small_net.h"
#include "local_sgd/warnings.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using namespace testing;

// Gradients of one step with a hook (null: DDP's own).
struct Gradients {
  Gradients(ProcessGroup group, std::shared_ptr<Hook> hook)
      : rank(group.rank()), ddp(small_net(), group, {.bucket_cap_mb = kSmallBuckets}) {
    if (hook) ddp->set_hook(hook);
  }
  std::vector<at::Tensor> at_step(int64_t step) {
    ddp->zero_grad();
    loss_on(ddp, rank, step).backward();
    return gradients_of(ddp->parameters());
  }
  int rank;
  DistributedDataParallel<torch::nn::SequentialImpl> ddp;
};

TEST(PostLocalSGDHook, EqualsAllreduceBeforeTheStartAndWhereTheSubgroupIsAll) {
  run_ranks(4, [](ProcessGroup group) {
    Gradients plain(group, make_hook("allreduce"));
    Gradients all(group,
                  make_post_local_sgd({.subgroup = group, .start_localSGD_iter = 5}));
    Gradients host(group, make_post_local_sgd({.start_localSGD_iter = 5}));
    Gradients late(group, make_post_local_sgd({.start_localSGD_iter = 1000}));
    Gradients none(group, make_post_local_sgd({.start_localSGD_iter = 5,
                                               .post_local_gradient_allreduce = false}));
    for (int64_t step = 0; step < 8; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const auto expected = plain.at_step(step);
      EXPECT_TRUE(same_bits(all.at_step(step), expected));
      EXPECT_TRUE(same_bits(host.at_step(step), expected));
      EXPECT_TRUE(same_bits(late.at_step(step), expected));
      const auto local = none.at_step(step);
      EXPECT_EQ(same_bits(local, expected), step < 5);
      if (step < 5) continue;
      auto net = small_net();
      loss_on(net, group.rank(), step).backward();
      EXPECT_LT(distance(local, gradients_of(net->parameters())), 1e-7);
    }
  });
}

TEST(PostLocalSGDHook, AveragesWithinTheSubgroupFromTheStartOnWithAnyInnerHook) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup pair = group.new_subgroups(2);
    for (const char* spec : {"allreduce", "fp16", "int8", "powersgd:start=0,rank=2"}) {
      SCOPED_TRACE(spec);
      auto hook = make_post_local_sgd({.subgroup = pair, .start_localSGD_iter = 2},
                                      make_hook(spec));
      Gradients local(group, hook);
      Gradients of_all(group, make_hook(spec)), of_pair(pair, make_hook("allreduce"));
      of_pair.rank = group.rank();
      for (int64_t step = 0; step < 5; ++step) {
        EXPECT_EQ(hook->iteration(), step);
        const auto got = local.at_step(step), all = of_all.at_step(step),
                   two = of_pair.at_step(step);
        EXPECT_TRUE(same_on(pair, got));
        EXPECT_EQ(same_on(group, got), step < 2);
        if (step < 2) {
          EXPECT_TRUE(same_bits(got, all));
        } else if (std::string(spec).find("powersgd") == std::string::npos) {
          EXPECT_LT(distance(got, two), 2e-2);
        }
      }
    }
  });
}

// A host is known by its name, among other things: each pair of ranks gets a name.
ProcessGroup as_two_hosts(const ProcessGroup& group) {
  if (unshare(CLONE_NEWUTS) != 0) throw std::runtime_error("unshare");
  const std::string name = "host" + std::to_string(group.rank() / 2);
  if (sethostname(name.data(), name.size()) != 0) throw std::runtime_error("sethostname");
  return init_process_group({.backend = "gloo", .timeout = group.timeout()});
}

TEST(PostLocalSGDHook, TheRanksOfOneHostAreTheSubgroupByDefault) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a process another host's name";
  run_ranks(4, [](ProcessGroup one_host) {
    const ProcessGroup group = as_two_hosts(one_host);
    Gradients local(group, make_post_local_sgd({.start_localSGD_iter = 1}));
    const ProcessGroup host = group.new_subgroups();
    ASSERT_EQ(host.size(), 2);
    Gradients of_host(host, make_hook("allreduce"));
    of_host.rank = group.rank();
    for (int64_t step = 0; step < 4; ++step) {
      const auto got = local.at_step(step), expected = of_host.at_step(step);
      EXPECT_TRUE(step < 1 || same_bits(got, expected)) << "step " << step;
      EXPECT_EQ(same_on(group, got), step < 1);
    }
    one_host.barrier();
  });
}

TEST(PostLocalSGDHook, KeepsItsIterationAndTheInnerHooksState) {
  run_ranks(2, [](ProcessGroup group) {
    const auto make = [] {
      return make_post_local_sgd({.start_localSGD_iter = 2}, make_hook("int8"));
    };
    auto first = make(), second = make();
    Gradients whole(group, first);
    for (int64_t step = 0; step < 3; ++step) whole.at_step(step);
    second->load_state(first->state());
    EXPECT_EQ(second->iteration(), 3);
    EXPECT_EQ(second->state().tensors.size(), first->state().tensors.size());
    EXPECT_GT(first->state().tensors.size(), 0u);
    EXPECT_NE(refusal([&] { second->load_state({}); }).find("iteration"),
              std::string::npos);
    EXPECT_NE(refusal([] {
                make_post_local_sgd({.start_localSGD_iter = -1});
              }).find("start_localSGD_iter is -1, but must be 0 or more"),
              std::string::npos);
    second->reset();
    EXPECT_EQ(second->iteration(), 0);
  });
}

TEST(PostLocalSGDHook, SparseGradientsStayWithinTheSubgroupToo) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup pair = group.new_subgroups(2);
    const auto gradient = [&](const ProcessGroup& over, std::shared_ptr<Hook> hook) {
      at::manual_seed(3);
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(20, 6).sparse(true));
      DistributedDataParallel ddp(table, over);
      ddp->set_hook(hook);
      ddp->forward(at::arange(4) + 3 * group.rank()).pow(2).sum().backward();
      EXPECT_TRUE(table->weight.grad().is_sparse());
      return table->weight.grad().to_dense();
    };
    const at::Tensor expected = gradient(pair, make_hook("allreduce"));
    const at::Tensor local =
        gradient(group, make_post_local_sgd({.subgroup = pair}, make_hook("fp16")));
    EXPECT_TRUE(at::allclose(local, expected));
    EXPECT_FALSE(same_on(group, {local}));
  });
}

TEST(PostLocalSGDHook, BeforeTheStartAGroupOfItsOwnIsAveragedOver) {
  run_ranks(4, [](ProcessGroup group) {
    const ProcessGroup pair = group.new_subgroups(2);
    Gradients both(group, make_post_local_sgd({.group = pair,
                                               .subgroup = group.new_subgroups(1),
                                               .start_localSGD_iter = 2}));
    Gradients of_pair(pair, make_hook("allreduce"));
    of_pair.rank = group.rank();
    for (int64_t step = 0; step < 4; ++step) {
      const auto got = both.at_step(step), expected = of_pair.at_step(step);
      EXPECT_EQ(same_bits(got, expected), step < 2) << "step " << step;
    }
  });
}

TEST(PostLocalSGDHook, RanksWithDifferentStartsFindOut) {
  run_ranks(2, [](ProcessGroup group) {
    Gradients rig(group, make_post_local_sgd({.start_localSGD_iter = group.rank()}));
    EXPECT_THROW(rig.at_step(0), MismatchError);
  });
}

}  // namespace
}  // namespace brigade
