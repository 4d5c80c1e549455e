// Whole runs: saved and resumed, at the same and at another number of ranks; refused when
// something does not fit, on every rank and with nothing changed.
#include "brigade/checkpoint.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "small_run.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
std::string file_like(const std::string& folder, const std::string& part) {
  for (const std::string& name : files_in(folder))
    if (name.find(part) != std::string::npos) return folder + "/" + name;
  ADD_FAILURE() << "no file like " << part;
  return "";
}
std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "it was accepted";
}
void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- resuming ---------------------------------------------------------------------------

struct Case {
  std::string hook;
  std::string optimizer;
};
// GoogleTest wants only letters and digits.
std::string name_of(const Case& c) {
  std::string name = c.hook + "_" + c.optimizer;
  for (char& letter : name) letter = std::isalnum(letter) ? letter : '_';
  return name;
}
class Resuming : public ::testing::TestWithParam<Case> {};

TEST_P(Resuming, IsBitwiseEqualToARunThatWasNeverStopped) {
  const std::string &hook = GetParam().hook, &optimizer = GetParam().optimizer;
  for (const int64_t saved_at : {1, 2, 9}) {
    TemporaryFolder folder;
    run_ranks(2, [&](ProcessGroup group) {
      SmallRun first(group, folder.path(), hook, optimizer);
      first.train(saved_at);
      first.save();
      first.train(60);
      SmallRun second(group, folder.path(), hook, optimizer);
      EXPECT_EQ(second.step(), saved_at);
      second.train(60);
      EXPECT_TRUE(at::equal(first.everything(), second.everything())) << saved_at;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Resuming,
    ::testing::Values(Case{"allreduce", "adam"}, Case{"powersgd:rank=2,start=2", "adamw"},
                      Case{"int8", "sgd"}, Case{"batched_powersgd:start=0", "rmsprop"},
                      Case{"fp16", "adagrad"}, Case{"int8", "zero"},
                      Case{"allreduce", "reduce_scatter"}, Case{"int4", "sgd"},
                      Case{"topk:ratio=0.1", "sgd"}, Case{"randomk:ratio=0.1", "sgd"},
                      Case{"rules:*bias=int4;*norm*=fp16;*=int8", "adam"},
                      Case{"powersgd:rounds=1,start=2", "sgd"}),
    [](const auto& about) { return name_of(about.param); });

TEST(Checkpoint, WithoutOneNothingIsLoaded) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    EXPECT_FALSE(find_checkpoint(folder.path() + "/nothing"));
    SmallRun run(group, folder.path(), "int8");
    EXPECT_EQ(run.load(), -1);
    run.train(1);
  });
}

TEST(Checkpoint, SaysWhatIsInIt) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/made/for/it";
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, path, "int8");
    run.train(2);
    run.save();
    const auto info = find_checkpoint(path);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->step, 2);
    EXPECT_EQ(info->ranks, 2);
    EXPECT_EQ(info->parts.size(), 7u);
    EXPECT_EQ(info->buckets, run.core().logging_data().bucket_parameters);
    EXPECT_GT(info->buckets.size(), 1u);
  });
}

TEST(Checkpoint, AnEarlierOneAndItsRemainsGoOtherFilesStay) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    if (group.rank() == 0) {
      std::ofstream(folder.path() + "/notes.txt") << "mine";
      std::ofstream(folder.path() + "/step-1-0123456789abcdef.rank-7.safetensors.partial");
    }
    group.barrier();
    SmallRun run(group, folder.path(), "int8");
    for (int i = 0; i < 3; ++i) run.save();  // the same step, three times
    const auto files = files_in(folder.path());
    ASSERT_EQ(files.size(), 6u);  // lock, manifest, shared, two shards, notes
    EXPECT_EQ(files[0], ".lock");
    EXPECT_EQ(files[1], "manifest.safetensors");
    EXPECT_EQ(files[2], "notes.txt");
    EXPECT_EQ(run.load(), 0);
  });
}

TEST(Checkpoint, TheProgramsOwnPartsComeBackSharedAndForEachRank) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    PartState shared{.tensors = {{"t", at::arange(3)}}, .values = {{"epoch", "4"}}};
    PartState mine{.values = {{"rank", std::to_string(group.rank())}}};
    const std::vector<CheckpointPart> parts{user_part(shared),
                                            user_part(mine, true, "mine")};
    save_checkpoint(folder.path(), 12, group, parts);
    shared = {};
    mine = {.values = {{"other", ""}}};
    EXPECT_EQ(load_checkpoint(folder.path(), group, parts), 12);
    EXPECT_TRUE(at::equal(shared.tensors.at("t"), at::arange(3)));
    EXPECT_EQ(shared.values.at("epoch"), "4");
    EXPECT_EQ(mine.values,
              (std::map<std::string, std::string>{{"rank", std::to_string(group.rank())}}));
    // Loads only the parts that are asked for.
    EXPECT_EQ(load_checkpoint(folder.path(), group, std::span(parts).first(1)), 12);
  });
}

TEST(Checkpoint, PythonReadsIt) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, folder.path(), "int8");
    run.train(2);
    run.save();
  });
  const std::string shared = file_like(folder.path(), ".shared.");
  const auto result = run_command({python_with_torch(), "-c", R"(
import sys
from safetensors.torch import load_file
tensors = load_file(sys.argv[1])
print(tuple(tensors["model/in.weight"].shape), "optimizer/state/in.weight/exp_avg" in tensors)
)",
                                   shared});
  EXPECT_EQ(result.out, "(24, 16) True\n") << result.err;
}

// ---- another number of ranks ------------------------------------------------------------

TEST(Checkpoint, LoadsAtAnotherNumberOfRanks) {
  TemporaryFolder folder;
  const std::string sums = folder.path() + "/sums";
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, folder.path(), "int8");
    run.train(5);
    run.save();
    // Error feedback needs the mean of the ranks' errors.
    at::Tensor error = run.core().hook()->state().tensors.at("error.in.weight").clone();
    group.all_reduce(error);
    if (group.rank() == 0)
      save_safetensors(sums, {.tensors = {{"mean", error / 2}, {"w", run.weights()}}});
  });
  for (const int ranks : {1, 3, 4}) {
    run_ranks(ranks, [&](ProcessGroup group) {
      SmallRun run(group, folder.path(), "int8");
      EXPECT_EQ(run.step(), 5);
      const auto expected = load_safetensors(sums).tensors;
      EXPECT_TRUE(at::equal(run.weights(), expected.at("w")));
      const at::Tensor error = run.core().hook()->state().tensors.at("error.in.weight");
      EXPECT_TRUE(at::allclose(error.flatten(), expected.at("mean").flatten()));
      EXPECT_GT(error.abs().max().item<double>(), 0);
      EXPECT_EQ(run.sampler().position(), size_t(5 * 8 * 2 / ranks));
      run.train(3);
    });
  }
}

TEST(Checkpoint, ZeroLoadsAtAnotherNumberOfRanks) {
  for (const char* kind : {"zero", "reduce_scatter"}) {
    TemporaryFolder folder;
    const std::string kept = folder.path() + "/kept";
    const auto keep = [&](const ProcessGroup& group, SmallRun& run, bool write) {
      const optim::OptimizerState whole = run.sharded().consolidate();
      if (group.rank() != 0) return;
      if (write) {
        save_safetensors(kept, {.tensors = whole.tensors, .metadata = whole.values});
        return;
      }
      const SafetensorsFile before = load_safetensors(kept);
      EXPECT_EQ(before.tensors.size(), whole.tensors.size());
      for (const auto& [key, tensor] : whole.tensors)
        EXPECT_TRUE(at::equal(tensor, before.tensors.at(key))) << key;
      for (const auto& [key, value] : whole.values)
        EXPECT_EQ(before.metadata.at(key), value) << key;
    };
    run_ranks(2, [&](ProcessGroup group) {
      SmallRun run(group, folder.path(), "allreduce", kind);
      run.train(5);
      run.set_lr(0.002);
      run.save();
      keep(group, run, true);
    });
    for (const int ranks : {1, 3, 4}) {
      run_ranks(ranks, [&](ProcessGroup group) {
        SmallRun run(group, folder.path(), "allreduce", kind);
        EXPECT_EQ(run.step(), 5);
        EXPECT_EQ(run.lr(), 0.002);
        keep(group, run, false);
        run.train(3);
      });
    }
  }
}

// ---- what does not fit ------------------------------------------------------------------

// Loads into a run, which must refuse it on every rank for `reason`, and not change.
void expect_refused_unchanged(const ProcessGroup& group, SmallRun& run,
                              const std::string& reason) {
  const at::Tensor before = run.everything();
  expect_in(refusal([&] { run.load(); }), reason);
  EXPECT_TRUE(at::equal(run.everything(), before)) << reason;
  group.barrier();
}

TEST(Checkpoint, WhatDoesNotFitIsNamedAndChangesNothing) {
  TemporaryFolder folder;
  TemporaryFolder none;
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun saved(group, folder.path(), "int8", "adam");
    saved.train(3);
    saved.save();
    const auto load_into = [&](SmallRun& run) {
      return refusal([&] { load_checkpoint(folder.path(), group, run.parts()); });
    };
    const auto expect_no = [&](SmallRun& run, const std::string& reason) {
      const at::Tensor before = run.everything();
      expect_in(load_into(run), reason);
      EXPECT_TRUE(at::equal(run.everything(), before)) << reason;
    };
    SmallRun wide(group, none.path(), "int8", "adam", 25);
    wide.train(1);
    expect_no(wide, "'in.weight' is Float [25, 16] here, but Float [24, 16] in the");
    SmallRun sgd(group, none.path(), "int8", "sgd");
    sgd.train(1);
    expect_no(sgd, "kind is 'Adam' in the checkpoint, but 'SGD' here");
    SmallRun fp16(group, none.path(), "fp16", "adam");
    fp16.train(1);
    expect_no(fp16, "saved with the hook int8");
    SmallRun zero(group, none.path(), "allreduce", "zero");
    zero.train(1);
    expect_in(load_into(zero), "has no part 'zero'");

    PartState user;
    const std::vector<CheckpointPart> other{user_part(user, false, "other")};
    expect_in(refusal([&] { load_checkpoint(folder.path(), group, other); }),
              "has no part 'other'");
    const std::vector<CheckpointPart> each{user_part(user, true)};
    expect_in(refusal([&] { load_checkpoint(folder.path(), group, each); }), "one for all");
  });
}

TEST(Checkpoint, AModelThatDiffersIsRefusedWithTheFirstDifference) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup group) {
    torch::nn::Linear saved(3, 2);
    const std::vector<CheckpointPart> parts{model_part(*saved)};
    save_checkpoint(folder.path(), 1, group, parts);
    const auto refused_by = [&](torch::nn::Module& model) {
      const std::vector<CheckpointPart> mine{model_part(model)};
      return refusal([&] { load_checkpoint(folder.path(), group, mine); });
    };
    torch::nn::Linear shape(2, 3);
    expect_in(refused_by(*shape), "'weight' is Float [3, 2] here, but Float [2, 3]");
    torch::nn::Linear dtype(3, 2);
    dtype->to(at::kDouble);
    expect_in(refused_by(*dtype), "'weight' is Double [2, 3] here, but Float [2, 3]");
    torch::nn::Linear less(torch::nn::LinearOptions(3, 2).bias(false));
    expect_in(refused_by(*less), "'bias' of the checkpoint is not in the model");
    torch::nn::Sequential named(torch::nn::Linear(3, 2));
    expect_in(refused_by(*named), "'0.weight' of the model is not in the checkpoint");
    torch::nn::Linear same(3, 2);
    EXPECT_EQ(refused_by(*same), "it was accepted");
    EXPECT_TRUE(at::equal(same->weight, saved->weight));
  });
}

TEST(Checkpoint, AChangedByteInAnyFileIsRefusedOnEveryRankAndChangesNothing) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, folder.path(), "int8");
    run.train(2);
    run.save();
    run.train(1);
    for (const char* which : {"manifest", ".shared.", ".rank-0.", ".rank-1."}) {
      const std::string path = file_like(folder.path(), which);
      const auto size = fs::file_size(path);
      for (int i = 0; i < 12; ++i) {
        const auto place = static_cast<std::streamoff>(size * i / 12);
        const auto flip = [&] {
          group.barrier();
          if (group.rank() == 0) {
            std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
            file.seekg(place);
            const char byte = static_cast<char>(file.get() ^ 0x10);
            file.seekp(place);
            file.put(byte);
          }
          group.barrier();
        };
        flip();
        expect_refused_unchanged(group, run, "safetensors: ");
        flip();
      }
    }
    EXPECT_EQ(run.load(), 2);
  });
}

TEST(Checkpoint, AMissingTruncatedOrExchangedFileIsRefused) {
  TemporaryFolder folder;
  TemporaryFolder other;
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, folder.path(), "int8");
    SmallRun stranger(group, other.path(), "int8");
    run.train(2);
    stranger.train(2);
    run.save();
    stranger.save();
    const std::string path = file_like(folder.path(), ".rank-1.");
    const auto on_rank_0 = [&](const std::function<void()>& act) {
      group.barrier();
      if (group.rank() == 0) act();
      group.barrier();
    };
    on_rank_0([&] { fs::rename(path, path + ".away"); });
    expect_refused_unchanged(group, run, "rank 1: " + path + ": cannot open it");
    on_rank_0([&] { fs::copy_file(file_like(other.path(), ".rank-1."), path); });
    expect_refused_unchanged(group, run, "not the file that was saved");
    on_rank_0([&] {
      fs::rename(path + ".away", path);
      fs::resize_file(path, fs::file_size(path) - 1);
    });
    expect_refused_unchanged(group, run, "truncated");
  });
}

TEST(Checkpoint, AFailedSaveFailsOnEveryRankAndLeavesTheOneBefore) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    SmallRun run(group, folder.path(), "int8");
    run.train(2);
    run.save();
    const auto before = files_in(folder.path());
    run.train(1);
    CheckpointPart broken{.name = "broken", .per_rank = true};
    broken.save = [&]() -> PartState {
      if (group.rank() == 1) throw std::runtime_error("no more paper");
      return {};
    };
    expect_in(refusal([&] { run.save({broken}); }), "rank 1: no more paper");
    group.barrier();
    EXPECT_EQ(files_in(folder.path()), before);
    EXPECT_EQ(run.load(), 2);
    // The commit fails because a folder is in the place of the manifest.
    run.train(1);
    const std::string in_its_place = folder.path() + "/manifest.safetensors.partial";
    if (group.rank() == 0) std::filesystem::create_directory(in_its_place);
    group.barrier();
    expect_in(refusal([&] { run.save(); }), "rank 0: ");
    EXPECT_EQ(run.load(), 2) << "what was committed before is gone";
    group.barrier();
    if (group.rank() == 0) std::filesystem::remove(in_its_place);
  });
}

TEST(Checkpoint, WrongUseIsRefused) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup group) {
    PartState user;
    const auto save = [&](std::vector<CheckpointPart> parts) {
      save_checkpoint(folder.path(), 1, group, parts);
    };
    EXPECT_THROW(save({user_part(user, false, "")}), ConfigError);
    EXPECT_THROW(save({user_part(user, false, "a/b")}), ConfigError);
    EXPECT_THROW(save({user_part(user), user_part(user)}), ConfigError);
    torch::nn::Linear model(2, 2);
    torch::nn::Linear other(2, 2);
    torch::optim::SGD sgd(other->parameters(), 0.1);
    EXPECT_THROW(optimizer_part(sgd, *model), ConfigError);
    torch::optim::LBFGS lbfgs(model->parameters(), 0.1);
    EXPECT_THROW(optimizer_part(lbfgs, *model), ConfigError);
    EXPECT_TRUE(files_in(folder.path()).empty());
  });
}

TEST(Checkpoint, RanksThatSaveDifferentStepsFindOut) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    PartState user;
    const std::vector<CheckpointPart> parts{user_part(user)};
    EXPECT_THROW(save_checkpoint(folder.path(), group.rank(), group, parts), MismatchError);
  });
}

// ---- kills ------------------------------------------------------------------------------

TEST(Checkpoint, ARunKilledTwentyTimesEndsLikeOneThatWasNeverKilled) {
  // Uses memory if there is such a folder: a kill does not need a disk, and hundreds of
  // flushes to a busy one take minutes.
  if (::access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
  TemporaryFolder folder;
  const auto train = [&](const std::string& name, int kills) {
    return run_command({built_program("brigade"), "run", "-n", "2", "--max-restarts",
                        std::to_string(kills), built_program("checkpoint_trainer"),
                        folder.path() + "/" + name, "200", std::to_string(kills), "1"},
                       {.wall = std::chrono::minutes(3)});
  };
  const CommandResult undisturbed = train("undisturbed", 0);
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  const CommandResult killed = train("killed", 20);
  ASSERT_EQ(killed.exit_code, 0) << killed.err;
  expect_in(killed.err, "SIGKILL; restart 20 of 20");
  EXPECT_EQ(killed.sorted_lines(), undisturbed.sorted_lines());
  EXPECT_EQ(undisturbed.sorted_lines().size(), 10u);
}

}  // namespace
}  // namespace brigade::testing
