// Files that the command writes: TensorBoard's records, reports of unusual runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "brigade/hooks.h"
#include "brigade/report.h"
#include "common/json.h"
#include "common/options.h"
#include "common/terminal.h"
#include "report/run_record.h"
#include "report/svg.h"
#include "report/tensorboard_records.h"
#include "support/command.h"
#include "support/ranks.h"

namespace brigade::tool {
namespace {

using report::coordinate;
using report::crc32c;
using report::tensorboard_record;

TEST(TensorBoard, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);  // the check value of CRC catalogues
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
}

TEST(TensorBoard, RecordIsLengthChecksumEventChecksum) {
  const std::string record = tensorboard_record(1.5, 300, {{"loss", 0.25}});
  std::uint64_t length = 0;
  std::copy_n(record.data(), sizeof length, reinterpret_cast<char*>(&length));
  EXPECT_EQ(record.size(), 8 + 4 + length + 4);
  // wall_time 1.5; step 300; summary { value { tag "loss", simple_value 0.25 } }
  const std::string event(
      "\x09\0\0\0\0\0\0\xf8\x3f\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss"
      "\x15\0\0\x80\x3e",
      9 + 3 + 2 + 2 + 11);
  EXPECT_EQ(record.substr(12, length), event);
}

Series odd_series() {
  Series series;
  series.hook = "<script>\"&'";
  series.test_accuracy = std::nan("");
  for (int step = 1; step <= 3; ++step) {
    series.points.push_back({.step = step, .seconds = 0.1 * step, .step_ms = 100});
    series.points.back().loss = step == 2 ? std::numeric_limits<double>::infinity() : 0.5;
  }
  series.points[1].accuracy = 0.5;
  return series;
}

TEST(Report, OfOddRunsIsAPage) {
  RunRecord record;
  EXPECT_NE(report_html(record).find("</html>"), std::string::npos);
  record.title = "a <b> & c";
  record.series.push_back(odd_series());
  record.tables.push_back({"T<", "", {"c<"}, {{"v<"}}});
  const std::string page = report_html(record);
  EXPECT_EQ(page.find("<script>\""), std::string::npos) << "a name was taken for a tag";
  EXPECT_NE(page.find("a &lt;b&gt; &amp; c"), std::string::npos);
  for (const char* bad : {">T<<", ">v<<", "=nan", " nan", "=inf", " inf"})
    EXPECT_EQ(page.find(bad), std::string::npos) << bad;
}

TEST(Report, MarksTheGenerationsOfAnElasticTraining) {
  RunRecord record;
  record.series.push_back({.hook = "fp16"});
  for (int step = 1; step <= 40; ++step)
    record.series[0].points.push_back({.step = step, .seconds = 0.1 * step, .loss = 0.5});
  record.series[0].generations.push_back({20, 2, "rank 1 ended by <SIGKILL>"});
  const std::string page = report_html(record);
  EXPECT_NE(page.find("<title>after step 20: rank 1 ended by &lt;SIGKILL&gt;; 2 workers go "
                      "on</title>"),
            std::string::npos);
}

TEST(Record, ComesBackFromJsonAsItWas) {
  RunRecord record;
  record.series.push_back(odd_series());
  record.series[0].generations.push_back({2, 3, "a reason"});
  record.series[0].spans.push_back(
      {.kind = Span::Kind::collective, .rank = 1, .station = 2});
  record.setup = {{"ranks", "2"}};
  const nlohmann::json json = to_json(record);
  EXPECT_EQ(to_json(report::record_from_json(nlohmann::json::parse(json.dump()))), json);
}

TEST(Metrics, ALossThatIsNoNumberIsNull) {
  RunRecord record;
  record.series.push_back(odd_series());
  std::istringstream lines(metrics_text(record));
  std::vector<nlohmann::json> parsed;
  for (std::string line; std::getline(lines, line);)
    parsed.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(parsed.size(), 3U);
  EXPECT_TRUE(parsed[1]["loss"].is_null());
  EXPECT_EQ(parsed[1]["accuracy"], 0.5);
  EXPECT_FALSE(parsed[0].contains("accuracy"));
  EXPECT_EQ(trace_text(record), "");
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A model of one parameter.
class Small {
 public:
  explicit Small(const ProcessGroup& group) : weight_(at::ones({50}).requires_grad_()) {
    DdpModel model;
    model.parameters = {{.name = "w", .tensor = weight_}};
    ddp_.emplace(model, group);
    ddp_->set_hook(make_hook("int8"));
  }
  DdpCore& ddp() { return *ddp_; }
  void step(report::TrainingLog& log) {
    log.begin_step();
    ddp_->before_forward();
    at::Tensor loss = (weight_ * weight_).sum();
    ddp_->after_forward({&loss});
    log.end_of(Span::Kind::forward);
    loss.backward();
    log.end_of(Span::Kind::backward);
  }

 private:
  at::Tensor weight_;
  std::optional<DdpCore> ddp_;
};

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::istringstream lines(text_of(path));
  std::vector<nlohmann::json> parsed;
  for (std::string line; std::getline(lines, line);)
    parsed.push_back(nlohmann::json::parse(line));
  return parsed;
}

TEST(TrainingLog, LeavesMetricsEventsATraceAndAReport) {
  const testing::TemporaryFolder folder;
  testing::run_ranks(2, [&](ProcessGroup group) {
    Small model(group);
    EXPECT_THROW(report::TrainingLog(model.ddp(), {}), ConfigError);
    report::TrainingLog log(model.ddp(), {.folder = folder.path() + "/a/b",
                                          .title = "my <training>",
                                          .hook = "int8",
                                          .traced_steps = 2});
    for (int step = 1; step <= 4; ++step) {
      model.step(log);
      if (step == 4) {
        log.step(0.5, {.accuracy = 0.75, .scalars = {{"lr", 0.1}}});
      } else {
        log.step(1.0 / step);
      }
    }
    log.finish();
  });
  const std::string place = folder.path() + "/a/b/";
  const std::vector<nlohmann::json> parsed = lines_of(place + "metrics.jsonl");
  ASSERT_EQ(parsed.size(), 4U);
  EXPECT_EQ(parsed[1]["loss"], 0.5);
  EXPECT_EQ(parsed[3]["accuracy"], 0.75);
  EXPECT_GT(parsed[3]["bytes_sent"], parsed[0]["bytes_sent"]);
  const nlohmann::json trace = nlohmann::json::parse(text_of(place + "trace.json"));
  std::set<int> ranks, steps;
  int forward_passes = 0;
  for (const auto& event : trace["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
    if (event.value("cat", "") != "forward") continue;
    ++forward_passes;
    steps.insert(event["args"]["step"].get<int>());
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(steps, (std::set<int>{0, 1})) << "the traced steps, from the first on";
  EXPECT_EQ(forward_passes, 4) << "two steps of two ranks";
  EXPECT_NE(text_of(place + "report.html").find("my &lt;training&gt;"), std::string::npos);
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(place + "tensorboard"))
    events += text_of(entry.path());
  EXPECT_NE(events.find("accuracy"), std::string::npos);
  EXPECT_NE(events.find("lr"), std::string::npos);
}

TEST(TrainingLog, GoesOnWhereTheCheckpointOfAResumedRunWas) {
  const testing::TemporaryFolder folder;
  const auto train = [&](std::int64_t resumed_from, int steps, double loss) {
    testing::run_ranks(2, [&](ProcessGroup group) {
      Small model(group);
      report::TrainingLog log(
          model.ddp(),
          {.folder = folder.path(), .hook = "int8", .resumed_from = resumed_from});
      for (int step = 0; step < steps; ++step) {
        model.step(log);
        log.step(loss);
      }
      log.finish();
      if (group.rank() == 0) {
        EXPECT_EQ(log.record().series[0].points.size(), resumed_from + steps);
      }
    });
    return lines_of(folder.path() + "/metrics.jsonl");
  };
  const auto first = train(0, 5, 1.0);
  ASSERT_EQ(first.size(), 5U);
  // The checkpoint was of step 3, so the steps after it are trained again.
  const auto second = train(3, 3, 0.5);
  ASSERT_EQ(second.size(), 6U);
  for (size_t i = 0; i < second.size(); ++i) {
    EXPECT_EQ(second[i]["step"], i + 1);
    EXPECT_EQ(second[i]["loss"], i < 3 ? 1.0 : 0.5);
    if (i == 0) continue;
    EXPECT_GT(second[i]["seconds"], second[i - 1]["seconds"]);
    EXPECT_GT(second[i]["bytes_sent"], second[i - 1]["bytes_sent"]);
  }
  // A run that begins anew begins the file anew.
  EXPECT_EQ(train(0, 2, 0.25).size(), 2U);
}

TEST(TrainingLog, TakesAStepThatTheProgramHasTimedAndTracesTheLastOnes) {
  const testing::TemporaryFolder folder;
  testing::run_ranks(1, [&](ProcessGroup group) {
    Small model(group);
    report::TrainingLog log(model.ddp(),
                            {.folder = folder.path(), .traced_steps = 2, .last_step = 5});
    for (std::int64_t step = 1; step <= 5; ++step) {
      model.step(log);
      log.leave_out();
      const StepPoint point{.step = step, .seconds = 2.0 * static_cast<double>(step)};
      EXPECT_EQ(log.step(point, {{"lr", 0.1}}).seconds, point.seconds);
    }
    log.record().series[0].link = "a wire";
    log.finish();
    std::set<std::int64_t> traced;
    for (const Span& span : log.record().series[0].spans) traced.insert(span.step);
    EXPECT_EQ(traced, (std::set<std::int64_t>{3, 4})) << "steps count from 0 here";
  });
  const auto lines = lines_of(folder.path() + "/metrics.jsonl");
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[4]["seconds"], 10);
  EXPECT_NE(text_of(folder.path() + "/report.html").find("a wire"), std::string::npos);
}

TEST(Numbers, AreShortAndReadable) {
  EXPECT_EQ(readable(1234567), "1,234,567");
  EXPECT_EQ(readable(0.00561), "0.00561");
  EXPECT_EQ(readable(-0.0), "0");
  EXPECT_EQ(coordinate(-0.01), "0");
  EXPECT_EQ(coordinate(12.34), "12.3");
  EXPECT_EQ(bytes_text(1114024), "1.11 MB");
  EXPECT_EQ(ms_text(4.6), "4.60");
}

TEST(Terminal, CountsColumnsAndNotBytes) {
  EXPECT_EQ(columns_of("\033[32m█░\033[0m x"), 4U);
  EXPECT_EQ(padded("é", 3), "é  ");
  const auto lines = table_lines({{"a", "long"}, {"hook", "1"}});
  EXPECT_EQ(lines[0], "a     long");
  EXPECT_EQ(lines[1], "hook     1");
}

}  // namespace
}  // namespace brigade::tool
