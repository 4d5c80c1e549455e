// The input of brigade train: each way in which a file can be wrong has one error, with the
// position.
#include "train/data/data.h"

#include <gtest/gtest.h>

#include <fstream>

#include "brigade/error.h"
#include "support/command.h"
#include "train/lr_schedule.h"

namespace brigade::tool {
namespace {

template <class Function>
std::string refusal(Function&& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "it was accepted";
}

std::string idx(std::initializer_list<int> sizes, std::size_t values, int type = 8) {
  std::string text{0, 0, static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const int size : sizes) {
    for (int shift : {24, 16, 8, 0}) text += static_cast<char>(size >> shift & 255);
  }
  return text + std::string(values, '\5');
}

TEST(Idx, ReadsSizesAndValues) {
  const std::string bytes = idx({2, 3, 4}, 24);
  const IdxFile file = parse_idx(bytes, "i", 3);
  EXPECT_EQ(file.sizes, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(file.values, std::string(24, '\5'));
}

TEST(Idx, NamesTheOffsetThatIsWrong) {
  const auto refused = [](const std::string& bytes) {
    return refusal([&] { parse_idx(bytes, "i", 3); });
  };
  EXPECT_EQ(refused("\1"),
            "--data: i, offset 1: the file ends within its header of 16 bytes");
  EXPECT_NE(refused("\1" + idx({1, 1, 1}, 1)).find("offset 0:"), std::string::npos);
  EXPECT_NE(refused(idx({1, 1, 1}, 1, 13)).find("offset 2: the values are of type 13"),
            std::string::npos);
  EXPECT_NE(refused(idx({12}, 12)).find("offset 3: 1 dimensions, expected 3"),
            std::string::npos);
  EXPECT_EQ(refused(idx({2, 3, 4}, 23)),
            "--data: i, offset 16: the header promises more values, the file has 23");
  EXPECT_EQ(refused(idx({2, 3, 4}, 25)),
            "--data: i, offset 16: the header promises 24 values, the file has 25");
  EXPECT_NE(refused(idx({-1, -1, -1}, 9)).find("promises more"), std::string::npos);
}

TEST(Idx, AFolderNeedsFourFilesThatFit) {
  const testing::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary) << bytes;
  };
  const auto refused = [&] { return refusal([&] { load_data("idx:" + folder.path()); }); };
  EXPECT_NE(refused().find("there is no '" + folder.path() + "/train-images-idx3-ubyte'"),
            std::string::npos);
  write("train-images-idx3-ubyte", idx({3, 4, 4}, 48));
  write("train-labels-idx1-ubyte", idx({2}, 2));
  EXPECT_NE(refused().find("has 3 images, but"), std::string::npos);
  write("train-labels-idx1-ubyte", idx({3}, 3));
  write("t10k-images-idx3-ubyte.gz", "x");
  write("t10k-labels-idx1-ubyte.gz", "x");
  EXPECT_NE(refused().find("-ubyte.gz': it "), std::string::npos);
  write("t10k-images.idx3-ubyte", idx({1, 4, 5}, 20));
  write("t10k-labels.idx1-ubyte", idx({1}, 1));
  EXPECT_NE(refused().find("differ in size"), std::string::npos);
  write("t10k-images.idx3-ubyte", idx({1, 4, 4}, 16));
  const TrainData data = load_data("idx:" + folder.path());
  EXPECT_EQ(data.classes.size(), 6U);
  EXPECT_EQ(data.values(), 16);
}

TEST(Idx, CompressedFilesAreReadAsTheyAre) {
  const testing::TemporaryFolder folder;
  const auto path = [&](const std::string& name) { return folder.path() + "/" + name; };
  const auto load = [&] { return load_data("idx:" + folder.path()); };
  for (const std::string which : {"train", "t10k"}) {
    std::ofstream(path(which + "-images-idx3-ubyte"), std::ios::binary)
        << idx({300, 20, 20}, 300 * 400);
    std::ofstream(path(which + "-labels-idx1-ubyte"), std::ios::binary) << idx({300}, 300);
  }
  const TrainData plain = load();
  ASSERT_EQ(std::system(("gzip " + folder.path() + "/*-ubyte").c_str()), 0);
  const TrainData packed = load();
  EXPECT_EQ(packed.fingerprint, plain.fingerprint);
  EXPECT_EQ(packed.train.bytes, plain.train.bytes);
  // One has two gzip files in one, as cat makes them; the other is cut off.
  const std::string name = path("train-labels-idx1-ubyte.gz");
  ASSERT_EQ(
      std::system(("cd " + folder.path() + " && gunzip -c " + name +
                   " > all && (head -c 100 all | gzip; tail -c +101 all | gzip) > " + name)
                      .c_str()),
      0);
  EXPECT_EQ(load().fingerprint, plain.fingerprint);
  ASSERT_EQ(std::system(("truncate -s -9 " + name).c_str()), 0);
  EXPECT_NE(refusal(load).find("cannot read '" + name + "': it ends too early"),
            std::string::npos);
}

TEST(Text, HasANumberForEachCharacterAndItsLastTenthForTheTest) {
  const TrainData data = parse_text("abcabcabca", "t");
  EXPECT_EQ(data.classes, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(data.train.bytes, (std::vector<std::uint8_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(data.test.bytes, (std::vector<std::uint8_t>{0}));
  EXPECT_NE(refusal([] { parse_text("aaaa", "t"); }).find("two different characters"),
            std::string::npos);
}

TEST(Digits, AreImagesAndEveryFifthIsForTheTest) {
  const TrainData data = load_data("digits");
  EXPECT_EQ(data.values(), 64);
  EXPECT_EQ(data.classes.size(), 10U);
  EXPECT_EQ(data.train.labels.size(), 1438U);
  EXPECT_EQ(data.test.labels.size(), 359U);
  EXPECT_EQ(data.train.bytes.size(), 1438U * 64);
  EXPECT_EQ(data.test.bytes.size(), 359U * 64);
  const auto first = [](const auto& all) {
    return std::vector(all.begin(), all.begin() + 5);
  };
  EXPECT_EQ(first(data.train.labels), (std::vector<std::int64_t>{0, 1, 2, 3, 5}));
  EXPECT_EQ(first(data.train.bytes), (std::vector<std::uint8_t>{0, 0, 5, 13, 9}));
  EXPECT_EQ(data.test.labels[0], 4);
}

TEST(Data, IsNamedOrRefused) {
  EXPECT_NE(refusal([] { load_data("digit"); }).find("did you mean 'digits'"),
            std::string::npos);
  EXPECT_EQ(refusal([] { load_data("csv:iris.csv"); }),
            "--data: no data set named 'csv'; known: digits, idx, text");
  EXPECT_NE(refusal([] { load_data("idx"); }).find("expected idx:FOLDER"),
            std::string::npos);
  EXPECT_NE(refusal([] { load_data("digits:x"); }).find("expected digits"),
            std::string::npos);
  EXPECT_NE(refusal([] { load_data("text:/no/such"); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(refusal([] { load_data("text:/"); }).find("it is a folder"), std::string::npos);
  EXPECT_NE(refusal([] { load_data("text:/dev/null"); }).find("a device"),
            std::string::npos);
}

TEST(Schedule, RisesAndFalls) {
  const LrSchedule constant("constant:warmup=3", 100);
  EXPECT_DOUBLE_EQ(constant.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(constant.factor(3), 1);
  const LrSchedule cosine("cosine:floor=0.1", 100);
  EXPECT_DOUBLE_EQ(cosine.factor(0), 1);
  EXPECT_DOUBLE_EQ(cosine.factor(50), 0.55);
  EXPECT_DOUBLE_EQ(cosine.factor(200), 0.1);
  const LrSchedule step("step:every=10,factor=0.5", 100);
  EXPECT_DOUBLE_EQ(step.factor(9), 1);
  EXPECT_DOUBLE_EQ(step.factor(25), 0.25);
  // The default is a third of all steps, whether or not some of them warm up.
  EXPECT_DOUBLE_EQ(LrSchedule("step:warmup=10", 100).factor(42), 1);
  EXPECT_DOUBLE_EQ(LrSchedule("step:warmup=10", 100).factor(43), 0.1);
  const LrSchedule cycle("one_cycle:rising=0.5,start_divisor=4", 100);
  EXPECT_DOUBLE_EQ(cycle.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(cycle.factor(49), 1);
  EXPECT_LT(cycle.factor(99), 1e-4);
}

TEST(Schedule, RefusesWhatItDoesNotKnow) {
  const auto refused = [](const char* spec) {
    return refusal([&] { LrSchedule schedule(spec, 10); });
  };
  EXPECT_NE(refused("cosin").find("did you mean 'cosine'"), std::string::npos);
  EXPECT_NE(refused("cosine:every=3").find("every"), std::string::npos);
  EXPECT_NE(refused("cosine:floor=2").find("floor is 2"), std::string::npos);
  EXPECT_NE(refused("step:every=0").find("every is 0"), std::string::npos);
  EXPECT_NE(refused("step:factor=0").find("factor is 0"), std::string::npos);
  EXPECT_NE(refused("one_cycle:rising=2").find("rising is 2"), std::string::npos);
  EXPECT_NE(refused("one_cycle:warmup=2").find("warmup"), std::string::npos);
  EXPECT_NE(refused("constant:warmup=-1").find("warmup is -1"), std::string::npos);
}

}  // namespace
}  // namespace brigade::tool
