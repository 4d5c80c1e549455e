#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "brigade/report.h"

namespace brigade::report {

std::string metrics_line(const Series& series, const StepPoint& point) {
  nlohmann::ordered_json line = {{"hook", series.hook},
                                 {"link", series.link},
                                 {"step", point.step},
                                 {"seconds", point.seconds},
                                 {"step_ms", point.step_ms},
                                 {"loss", point.loss},  // null where it is not finite
                                 {"bytes_sent", point.bytes_sent},
                                 {"overlap", point.overlap}};
  if (point.accuracy) line["accuracy"] = *point.accuracy;
  return line.dump() + "\n";
}

std::string metrics_text(const RunRecord& record) {
  std::string text;
  for (const Series& series : record.series) {
    for (const StepPoint& point : series.points) text += metrics_line(series, point);
  }
  return text;
}

class MetricsWriter::File : public base::RecordFile {
  using RecordFile::RecordFile;
};

MetricsWriter::MetricsWriter(std::string path, bool append)
    : file_(std::make_unique<File>(std::move(path), append)) {}
MetricsWriter::~MetricsWriter() = default;
MetricsWriter::MetricsWriter(MetricsWriter&&) noexcept = default;
MetricsWriter& MetricsWriter::operator=(MetricsWriter&&) noexcept = default;

void MetricsWriter::add(const Series& series, const StepPoint& point) {
  file_->add(metrics_line(series, point));
}

}  // namespace brigade::report
