// Hooks where ranks share hosts: the mean, the same bits on all ranks, error feedback and
// states, for every dense hook and for node+ with others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "brigade/brigade.h"
#include "brigade/compose_hooks.h"
#include "hooks/bag.h"
#include "support/ranks.h"

namespace brigade {
namespace {

using testing::Gradients;
using testing::Rig;
using testing::run_ranks;
using testing::Shapes;
using testing::Structure;

struct SharedHosts {
  const char* name;
  std::vector<int> hosts;  // by rank
};

class HooksOnHosts : public ::testing::TestWithParam<SharedHosts> {
 protected:
  static void run(const std::function<void(ProcessGroup)>& body) {
    const auto& hosts = GetParam().hosts;
    run_ranks(static_cast<int>(hosts.size()), body, {.hosts = hosts});
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, HooksOnHosts,
                         ::testing::Values(SharedHosts{"TwoByTwo", {0, 0, 1, 1}},
                                           SharedHosts{"TwoByOne", {0, 1}},
                                           SharedHosts{"ThreeAndOne", {0, 0, 0, 1}}),
                         [](const auto& one) { return std::string(one.param.name); });

// Parameters in 1, 2 and 5 buckets, up to 2 of them under way at once.
const std::vector<std::pair<Shapes, double>>& bucketings() {
  static const std::vector<std::pair<Shapes, double>> all{
      {{{24, 30}, {13}, {40, 10}}, 25.0},
      {{{24, 30}, {40, 10}}, testing::kOneBucketEach},
      {{{24, 30}, {1}, {40, 10}, {300}, {17, 9}}, testing::kOneBucketEach}};
  return all;
}

void expect_same_everywhere(const ProcessGroup& group,
                            const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& gradient : gradients) {
    at::Tensor first = gradient.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(at::equal(first, gradient)) << "replicas differ";
  }
}

// A user's hook: gathers everything, and averages locally.
std::shared_ptr<Hook> gathering_hook() {
  return make_hook("gathering", [](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor all = at::empty({comm.size(), bucket.buffer().numel()});
    co_await comm.all_gather(bucket.buffer(), all);
    co_return all.mean(0);
  });
}

TEST_P(HooksOnHosts, GiveTheMeanAndTheSameBitsInAnyNumberOfBuckets) {
  run([](ProcessGroup group) {
    struct Case {
      std::string spec;
      double tolerance;
      Gradients kind = {};
    };
    const Gradients low{Structure::matrix, 2};
    std::vector<Case> cases{{"node+allreduce", 1e-5},
                            {"node+powersgd:start=0,rank=2", 1e-5, low},
                            {"node+int8", 1.5e-2},
                            {"fp16+node+allreduce", 1e-3},
                            {"int8:flat=1", 1.5e-2}};
    for (const HookEntry& entry : hook_table()) {
      if (std::ranges::count(entry.options, "flat") > 0)
        cases.push_back({std::string(entry.name), entry.tolerance});
    }
    for (const auto& [shapes, cap] : bucketings()) {
      Rig rig(group, "", shapes, at::kFloat, {.bucket_cap_mb = cap});
      const auto check = [&](std::shared_ptr<Hook> hook, double tolerance) {
        SCOPED_TRACE(hook->name());
        rig.ddp->set_hook(std::move(hook));
        for (int64_t step = 0; step < 2; ++step) {
          const auto gradients = rig.train(step);
          expect_same_everywhere(group, gradients);
          if (step == 0) {
            EXPECT_LE(rig.error(gradients, step), tolerance);
          }
        }
      };
      for (const Case& one : cases) {
        rig.kind = one.kind;
        check(make_hook(one.spec), one.tolerance);
      }
      check(node_wrapper(gathering_hook()), 1e-6);
    }
  });
}

// Like the Ledger of error_feedback_test.cpp, for buckets that are rebuilt after the first
// step and states that go on in new hooks, at the same and at another number of ranks.
struct Balance {
  explicit Balance(const Shapes& shapes) {
    for (const auto& shape : shapes) owed.push_back(at::zeros(shape, at::kDouble));
    size.resize(shapes.size());
  }
  void train(Rig& rig, int64_t step) {
    const auto gradients = rig.train(step);
    expect_same_everywhere(rig.group, gradients);
    for (size_t index = 0; index < owed.size(); ++index) {
      owed[index] = owed[index] + rig.mean(step, index) - gradients[index];
      size[index] += rig.mean(step, index).norm().item<double>();
    }
  }
  // `combined`: all ranks' states in one. Exact except for rounding, which includes that of
  // a larger layer in the same bucket.
  void expect_kept(const HookState& combined) const {
    const double largest = *std::ranges::max_element(size);
    for (size_t index = 0; index < owed.size(); ++index) {
      const at::Tensor kept =
          combined.tensors.at(kErrorPrefix + ("p" + std::to_string(index)));
      const double off =
          (owed[index] - kept.view(owed[index].sizes())).norm().item<double>();
      EXPECT_LE(off, 2e-6 * size[index] + 1e-7 * largest) << "parameter " << index;
      EXPECT_GT(owed[index].norm().item<double>(), 1e-4 * size[index])
          << "nothing was lost";
    }
  }
  std::vector<at::Tensor> owed;
  std::vector<double> size;
};

// Writes lines: a key, then a value, or the sizes and bits of a tensor of floats.
std::string packed(const HookState& state) {
  std::ostringstream out;
  for (const auto& [key, value] : state.values) out << "v " << key << "\n" << value << "\n";
  for (const auto& [key, tensor] : state.tensors) {
    out << "t " << key << "\n" << tensor.dim();
    for (int64_t size : tensor.sizes()) out << " " << size;
    const at::Tensor bits = tensor.to(at::kFloat).contiguous().flatten().view(at::kInt);
    for (int64_t at = 0; at < bits.numel(); ++at)
      out << " " << bits.const_data_ptr<int>()[at];
    out << "\n";
  }
  return out.str();
}

HookState unpacked(const std::string& text) {
  HookState state;
  std::istringstream in(text);
  for (std::string key, rest; std::getline(in, key) && std::getline(in, rest);) {
    if (key[0] == 'v') {
      state.values[key.substr(2)] = rest;
      continue;
    }
    std::istringstream numbers(rest);
    size_t dimensions = 0;
    numbers >> dimensions;
    std::vector<int64_t> sizes(dimensions);
    for (int64_t& size : sizes) numbers >> size;
    const std::vector<int> bits(std::istream_iterator<int>(numbers), {});
    state.tensors[key.substr(2)] = at::tensor(bits, at::kInt).view(at::kFloat).view(sizes);
  }
  return state;
}

// Every rank's state, by rank.
std::vector<HookState> all_states(const ProcessGroup& group, const Hook& hook) {
  std::vector<HookState> states;
  for (const std::string& text : group.gather_texts("states", packed(hook.state())))
    states.push_back(unpacked(text));
  return states;
}

TEST_P(HooksOnHosts, LoseNothingInTheMeanAndGoOnFromTheirStates) {
  run([](ProcessGroup group) {
    const Shapes shapes{{24, 30}, {40, 10}, {24, 30}};
    DdpOptions options{.bucket_cap_mb = 0.004};
    options.first_buckets = {{"p1", "p0"}, {"p2"}};
    const ProcessGroup some = group.new_group({0, 1});
    for (const std::string spec : {"int8", "node+int8", "node+powersgd:start=0"}) {
      SCOPED_TRACE(spec);
      Rig rig(group, spec, shapes, at::kFloat, options);
      Balance balance(shapes);
      for (int64_t step = 0; step < 3; ++step) balance.train(rig, step);
      const std::vector<HookState> states = all_states(group, *rig.ddp->hook());
      const HookState combined = combine_states(states);
      balance.expect_kept(combined);
      // The same ranks go on bit by bit.
      const auto own = rig.ddp->hook()->state();
      const auto before = rig.train(3);
      rig.ddp->set_hook(make_hook(spec));
      rig.ddp->hook()->load_state(own);
      const auto after = rig.train(3);
      for (size_t index = 0; index < before.size(); ++index)
        EXPECT_TRUE(at::equal(before[index], after[index])) << "parameter " << index;
      // Loads the state on fewer ranks, and on the same ones with the mean of all.
      for (const ProcessGroup& next : {group, some}) {
        if (!next) continue;
        Rig other(next, spec, shapes, at::kFloat, options);
        other.ddp->hook()->load_state(combined);
        Balance further = balance;
        for (int64_t step = 4; step < 6; ++step) further.train(other, step);
        further.expect_kept(combine_states(all_states(next, *other.ddp->hook())));
      }
    }
  });
}

TEST(NodeHook, AStateOfOtherHostsIsRefusedWithTheRemedy) {
  run_ranks(
      4,
      [](ProcessGroup group) {
        Rig rig(group, "node+int8", {{24, 30}});
        HookState state;
        state.values["own.shape"] = "flat";
        rig.ddp->hook()->load_state(state);
        try {
          rig.train(0);
          ADD_FAILURE() << "it was taken";
        } catch (const HookError& error) {
          EXPECT_NE(std::string(error.what()).find("combine_states()"), std::string::npos)
              << error.what();
        }
      },
      {.hosts = {0, 0, 1, 1}});
}

// Runs all-reduces of one value each, one after the other.
std::shared_ptr<Hook> chatty_hook(int collectives) {
  return make_hook("chatty", [collectives](Bucket bucket, Comm& comm) -> Task<at::Tensor> {
    at::Tensor one = at::ones({1});
    for (int count = 0; count < collectives; ++count) co_await comm.all_reduce(one);
    co_return bucket.buffer();
  });
}

TEST(NodeHook, AHookMayAwaitTwelveCollectivesAndOneWithMoreIsRefused) {
  run_ranks(3,
            [](ProcessGroup group) {
              Rig rig(group, "", {{24, 30}});
              rig.ddp->set_hook(node_wrapper(chatty_hook(12)));
              EXPECT_NO_THROW(rig.train(0));
              rig.ddp->set_hook(node_wrapper(chatty_hook(13)));
              try {
                rig.train(1);
                ADD_FAILURE() << "it was taken";
              } catch (const HookError& error) {
                EXPECT_NE(
                    std::string(error.what())
                        .find("node+chatty: the hook awaits more than 12 collectives"),
                    std::string::npos)
                    << error.what();
              }
            },
            {.hosts = {0, 0, 1}});
}

// A rank's sockets, threads and private memory. That leaves out pages shared with the
// process from which it was forked, such as the libraries.
struct Footprint {
  int sockets = 0, threads = 0;
  double megabytes = 0;
};
double own_megabytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    int64_t kilobytes = 0;
    if (word == "Private_Dirty:" && rollup >> kilobytes)
      return static_cast<double>(kilobytes) / 1e3;
  }
  return 0;
}
Footprint footprint() {
  Footprint found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the listing's own descriptor
    const auto to = std::filesystem::read_symlink(entry.path(), gone);
    found.sockets += !gone && to.string().starts_with("socket:") ? 1 : 0;
  }
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  found.threads = static_cast<int>(std::distance(begin(tasks), end(tasks)));
  found.megabytes = own_megabytes();
  return found;
}

// There are H hosts of L ranks. Beside the group of all, a rank connects to its host's L -
// 1 others and the H - 1 cross-host ranks, in a group each and in two stations for each.
// With one rank a host the exchange is flat by itself.
TEST(Connections, OfAnExchangeThatKnowsHostsAreWithinTheHostAndAmongRanksOfEqualPlace) {
  std::vector<std::pair<int, int>> forms{{2, 1}, {2, 2}, {4, 2}};
  if (testing::brief_or_long(0, 1)) {
    forms.insert(forms.end(), {{4, 4}, {8, 2}, {8, 4}, {8, 8}});
  }
  for (const auto& [hosts, each] : forms) {
    SCOPED_TRACE(std::to_string(hosts) + " x " + std::to_string(each));
    std::vector<int> host_of;
    for (int rank = 0; rank < hosts * each; ++rank) host_of.push_back(rank / each);
    const int mates = each - 1, peers = hosts - 1, others = hosts * each - 1;
    run_ranks(hosts * each,
              [&](ProcessGroup group) {
                Rig rig(group, "allreduce", {{64, 64}});  // a chunk for every slot
                rig.train(0);
                const Footprint exact = footprint();
                rig.ddp->set_hook(make_hook("int8"));
                rig.train(1);
                const Footprint by_host = footprint();
                rig.ddp->set_hook(make_hook("int8:flat=1"));
                rig.train(2);
                const Footprint flat = footprint();
                group.barrier();  // ranks that leave close theirs
                // Counts the group itself, a station, the store, and listening sockets.
                EXPECT_LE(exact.sockets, 2 * others + 5);
                if (mates == 0) {
                  // The second station has a listening socket, too.
                  EXPECT_GE(by_host.sockets - exact.sockets, others);
                  EXPECT_LE(by_host.sockets - exact.sockets, others + 3);
                  EXPECT_EQ(flat.sockets, by_host.sockets);
                } else {
                  // Each of the six groups has a listening socket, too.
                  EXPECT_GE(by_host.sockets - exact.sockets, 3 * (mates + peers));
                  EXPECT_LE(by_host.sockets - exact.sockets, 3 * (mates + peers) + 10);
                  // In a flat exchange every further station connects to all ranks.
                  EXPECT_GE(flat.sockets - by_host.sockets, others - 1);
                  EXPECT_LE(flat.sockets - by_host.sockets, others + 3);
                }
                // The number of threads does not depend on the number of ranks.
                EXPECT_LE(flat.threads, 40);
                EXPECT_GT(exact.megabytes, 1) << "memory was not read";
                EXPECT_LE(flat.megabytes - exact.megabytes, 4 + 0.1 * others);
                if (testing::brief_or_long(0, 1) && group.rank() == 0) {
                  std::cerr << group.size() << " ranks: sockets " << exact.sockets << ", "
                            << by_host.sockets << ", " << flat.sockets << "; threads "
                            << exact.threads << ", " << by_host.threads << ", "
                            << flat.threads << "; MB " << exact.megabytes << ", "
                            << by_host.megabytes << ", " << flat.megabytes << std::endl;
                }
              },
              {.hosts = host_of});
  }
}

}  // namespace
}  // namespace brigade
