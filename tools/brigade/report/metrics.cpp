#include "report/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace brigade::tool {

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

void MetricsWriter::add(const nlohmann::json& line) { file_.add(line.dump() + "\n"); }

}  // namespace brigade::tool
