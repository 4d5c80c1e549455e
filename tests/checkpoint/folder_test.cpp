// A checkpoint folder with other jobs, foreign writers in the store, and slow disks.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "brigade/checkpoint.h"
#include "checkpoint/manifest.h"
#include "support/command.h"
#include "support/ranks.h"
#include "support/reserved_port.h"

namespace brigade::testing {
namespace {

namespace files = std::filesystem;

std::string why_refused(const std::function<void()>& act) {
  try {
    act();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "it was accepted";
}
void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

PartState some_state() { return {.values = {{"epoch", "4"}}}; }

// Two ranks of checkpoint_trainer without a launcher.
class TwoTrainers {
 public:
  TwoTrainers(const std::string& folder, std::map<std::string, std::string> environment) {
    for (const char* rank : {"0", "1"}) {
      CommandOptions options{.environment = environment};
      options.environment.merge(
          std::map<std::string, std::string>{{"RANK", rank},
                                             {"WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", "127.0.0.1"},
                                             {"MASTER_PORT", port_.number()},
                                             {"OMP_NUM_THREADS", "1"}});
      ranks_.push_back(std::make_unique<Command>(
          std::vector<std::string>{built_program("checkpoint_trainer"), folder, "6", "0",
                                   "1"},
          options));
    }
  }
  CommandResult finish(size_t rank) { return ranks_[rank]->finish(); }

 private:
  ReservedPort port_;
  std::vector<std::unique_ptr<Command>> ranks_;
};

// Rank 0's renaming of the manifest takes longer than rank 1's time limit. Rank 1 fails,
// but its files must stay, because rank 0 still commits them.
TEST(CheckpointFolder, ACommitThatOutlastsARanksTimeLimitLosesNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not bear a library that is loaded before its own";
#endif
  TemporaryFolder folder;
  const std::string go_on = folder.path() + "/go_on";
  const std::string log = folder.path() + "/faults";
  {
    TwoTrainers slow(
        folder.path() + "/slow",
        {{"LD_PRELOAD", built_program("../lib/libfault_shim.so")},
         // For builds with ASan: the order of libraries does not matter to the shim.
         {"ASAN_OPTIONS", "verify_asan_link_order=0"},
         {"BRIGADE_TIMEOUT", "3"},
         {"BRIGADE_FAULTS_LOG", log},
         {"BRIGADE_FAULTS",
          "call=rename,path=*/adam/manifest.safetensors,rank=0,nth=2,until=" + go_on}});
    const CommandResult impatient = slow.finish(1);
    EXPECT_NE(impatient.exit_code, 0);
    expect_part(impatient.err, "committing a checkpoint");
    ASSERT_TRUE(files::exists(log)) << "no rename was held up";
    std::ofstream(go_on) << "";
    slow.finish(0);
  }
  TwoTrainers again(folder.path() + "/slow", {});
  TwoTrainers undisturbed(folder.path() + "/undisturbed", {});
  for (const size_t rank : {0, 1}) {
    const CommandResult resumed = again.finish(rank);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.out, undisturbed.finish(rank).out);
  }
}

TEST(CheckpointFolder, TwoJobsInOneFolderAreRefused) {
  TemporaryFolder folder;
  run_ranks(2, [&](ProcessGroup group) {
    PartState state = some_state();
    const std::vector<CheckpointPart> parts{user_part(state)};
    // Each rank is a job by itself.
    const ProcessGroup alone = group.new_subgroups(1);
    const auto save = [&] { save_checkpoint(folder.path(), 1, alone, parts); };
    if (group.rank() == 0) {
      save();
      save();  // its own folder stays its own
    }
    group.barrier();
    if (group.rank() == 1) {
      const std::string why = why_refused(save);
      expect_part(why, "another job saves its checkpoints here (process ");
      EXPECT_EQ(load_checkpoint(folder.path(), alone, parts), 1) << "reading is for all";
    }
    group.barrier();
    // Within a job any rank 0 may save: no other process keeps the folder.
    save_checkpoint(folder.path(), 2, group, parts);
    EXPECT_EQ(load_checkpoint(folder.path(), group, parts), 2);
  });
  // The lock ends with its process.
  run_ranks(1, [&](ProcessGroup group) {
    PartState state = some_state();
    save_checkpoint(folder.path(), 3, group, std::vector{user_part(state)});
  });
}

TEST(CheckpointFolder, NamesFromTheStoreDoNotBecomePaths) {
  TemporaryFolder folder;
  const std::string inside = folder.path() + "/inside";
  for (const std::string text : {"7\n../outside\n", "7\n/tmp/outside\n",
                                 "7\nstep-7-0123456789abcdef/../../outside\n", "7\n\n",
                                 "7\n", "", "7\nstep-7-0123456789abcdef\nmore\n"}) {
    run_ranks(2, [&](ProcessGroup group) {
      PartState state = some_state();
      const std::vector<CheckpointPart> parts{user_part(state, true)};
      if (group.rank() == 0) {  // a foreign writer that acts as rank 0
        group.gather_texts("saving a checkpoint", "+" + text);
        return;
      }
      files::create_directories(inside);
      expect_part(why_refused([&] { save_checkpoint(inside, 7, group, parts); }),
                  "save_checkpoint: rank 0 ");
    });
    EXPECT_TRUE(files::is_empty(inside)) << text;
    EXPECT_EQ(std::distance(files::directory_iterator(folder.path()), {}), 1) << text;
  }
}

TEST(CheckpointFolder, NamesInAManifestDoNotBecomePaths) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup group) {
    PartState state = some_state();
    const std::vector<CheckpointPart> parts{user_part(state)};
    checkpoint::Manifest manifest{.shared_checksum = "0", .shard_checksums = {"-"}};
    for (const char* set : {"../elsewhere", "/etc/passwd", "", "step-1-0123456789abcdeg"}) {
      manifest.set = set;
      checkpoint::write_manifest(folder.path(), manifest);
      const std::string why =
          why_refused([&] { load_checkpoint(folder.path(), group, parts); });
      expect_part(why, folder.path() +
                           "/manifest.safetensors: not a manifest of brigade: '" +
                           std::string(set) + "' is no name of a set");
    }
  });
}

TEST(CheckpointFolder, APipeADeviceAFolderOrALinkToNothingIsRefusedWithoutWaiting) {
  TemporaryFolder folder;
  run_ranks(1, [&](ProcessGroup group) {
    PartState state = some_state();
    const std::vector<CheckpointPart> parts{user_part(state)};
    save_checkpoint(folder.path(), 5, group, parts);
    const auto set = checkpoint::read_manifest(folder.path())->set;
    for (const std::string& path : {folder.path() + "/manifest.safetensors",
                                    checkpoint::shared_path(folder.path(), set)}) {
      const auto expect_refused_as = [&](const std::string& why) {
        expect_part(why_refused([&] { load_checkpoint(folder.path(), group, parts); }),
                    path + ": " + why);
        expect_part(why_refused([&] { find_checkpoint(folder.path()); }),
                    path + ": " + why);
        files::remove_all(path);
      };
      files::rename(path, path + ".away");
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
      expect_refused_as("it is a pipe");
      files::create_symlink("/dev/zero", path);
      expect_refused_as("it is a device");
      files::create_directory(path);
      expect_refused_as("it is a folder");
      files::create_symlink(path + ".none", path);
      expect_refused_as("cannot open it: No such file");
      files::rename(path + ".away", path);
    }
    EXPECT_EQ(load_checkpoint(folder.path(), group, parts), 5);
  });
}

}  // namespace
}  // namespace brigade::testing
