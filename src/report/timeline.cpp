#include "brigade/report.h"

namespace brigade::report {
namespace {

constexpr std::int64_t kSteps = 8;

}  // namespace

void Timeline::begin_step(std::int64_t left) {
  ++step_;
  if (recording_ || left > kSteps) return;
  recording_ = true;
  ddp_.record_trace(true);
}

void Timeline::stop() {
  if (recording_) ddp_.record_trace(false);
  recording_ = false;
}

void Timeline::note(Span::Kind kind, std::chrono::steady_clock::time_point begin,
                    std::chrono::steady_clock::time_point end) {
  if (recording_) loop_.push_back(loop_span(kind, group_.rank(), step_, begin, end));
}

std::vector<Span> Timeline::gather() {
  ddp_.set_hook(nullptr);  // ends the engine's threads, so all their notes are there
  std::vector<Span> mine = spans_of(ddp_.take_trace(), group_.rank());
  mine.insert(mine.end(), loop_.begin(), loop_.end());
  RunRecord envelope;
  envelope.series.push_back({.spans = std::move(mine)});
  std::vector<Span> all;
  for (const std::string& text : group_.gather_texts("spans", json_text(envelope))) {
    const RunRecord other = record_from_text(text);
    all.insert(all.end(), other.series[0].spans.begin(), other.series[0].spans.end());
  }
  return all;
}

}  // namespace brigade::report
