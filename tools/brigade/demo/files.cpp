#include "demo/files.h"

#include <chrono>
#include <filesystem>

#include "base/atomic_file.h"
#include "brigade/report.h"

namespace brigade::tool {
namespace {

void write_events(const RunRecord& record, const std::string& folder) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  for (const Series& series : record.series) {
    const std::string place =
        folder + "/" + series.hook + (series.link.empty() ? "" : "_over_link");
    base::check_output_folder(place, "--out");
    base::write_whole(place + "/events.out.tfevents.demo",
                      tensorboard_text(series, seconds));
  }
}

}  // namespace

void check_demo_folder(const std::string& folder) {
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path path = folder;
       !path.empty() && !std::filesystem::exists(std::filesystem::symlink_status(path));
       path = path.parent_path()) {
    missing.push_back(path);
  }
  base::check_output_folder(folder, "--out");
  std::error_code ignored;  // another process has put something in it
  for (const std::filesystem::path& path : missing) std::filesystem::remove(path, ignored);
}

void write_demo_files(Terminal& terminal, const RunRecord& record,
                      const std::string& folder) {
  const auto say = [&](const std::string& path, const std::string& what) {
    terminal.line("  " + padded(path, 34) + " " + terminal.paint(Paint::dim, what));
  };
  const auto write = [&](const std::string& name, const std::string& text,
                         const std::string& what) {
    base::write_whole(folder + "/" + name, text);
    say(folder + "/" + name, what);
  };
  base::check_output_folder(folder, "--out");
  write("report.html", report_html(record), "charts and timelines, for a browser");
  write("metrics.jsonl", metrics_text(record), "a line a step");
  write("trace.json", trace_text(record), "for ui.perfetto.dev or chrome://tracing");
  write_events(record, folder + "/tensorboard");
  say(folder + "/tensorboard", "for tensorboard --logdir");
}

}  // namespace brigade::tool
