#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <charconv>

#include "brigade/elastic.h"
#include "brigade/error.h"

namespace brigade {
namespace {

int64_t count_in(const PartState& state, const std::string& key) {
  const auto found = state.values.find(key);
  const std::string text = found == state.values.end() ? "" : found->second;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value < 0)
    throw CheckpointError("its value '" + key + "' is '" + text + "', which is no count");
  return value;
}

}  // namespace

ElasticSampler::ElasticSampler(int64_t samples, int64_t batch,
                               const ElasticSamplerOptions& options)
    : samples_(samples), batch_(batch), options_(options) {
  const auto refuse = [](const char* what, int64_t value) {
    throw ConfigError(std::string("ElasticSampler: ") + what + " is " +
                      std::to_string(value) + "; it must be 1 or more");
  };
  if (samples < 1) refuse("samples", samples);
  if (batch < 1) refuse("batch", batch);
  if (options.epochs < 1) refuse("epochs", options.epochs);
  make_order();
}

void ElasticSampler::make_order() {
  if (!options_.shuffle) {
    order_ = at::arange(samples_, at::kLong);
    return;
  }
  auto generator =
      at::detail::createCPUGenerator(options_.seed + static_cast<uint64_t>(epoch_));
  order_ = at::randperm(samples_, generator, at::kLong);
}

int64_t ElasticSampler::rows_in_step(int ranks) const {
  const int64_t left = samples_ - consumed_;
  const int64_t whole = batch_ * ranks;
  return left < whole + ranks ? left : whole;
}

at::Tensor ElasticSampler::rows(int rank, int ranks) const {
  const int64_t all = rows_in_step(ranks);
  // Rounding up gives rank 0, whose buffers count, samples as long as there are any.
  const auto first_of = [&](int64_t of) { return (all * of + ranks - 1) / ranks; };
  const int64_t begin = first_of(rank);
  return order_.narrow(0, consumed_ + begin, first_of(rank + 1) - begin).clone();
}

void ElasticSampler::advance(int ranks) {
  consumed_ += rows_in_step(ranks);
  if (consumed_ < samples_) return;
  consumed_ = 0;
  ++epoch_;
  make_order();
}

std::string ElasticSampler::describe() const {
  return "samples " + std::to_string(samples_) + ", batch " + std::to_string(batch_) +
         ", epochs " + std::to_string(options_.epochs) + ", seed " +
         std::to_string(options_.seed) + (options_.shuffle ? ", shuffled" : "");
}

CheckpointPart ElasticSampler::part(std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [this] {
    PartState state;
    state.values["epoch"] = std::to_string(epoch_);
    state.values["consumed"] = std::to_string(consumed_);
    return state;
  };
  part.load = [this](SavedPart saved) {
    const int64_t epoch = count_in(saved.states.at(0), "epoch");
    const int64_t consumed = count_in(saved.states.at(0), "consumed");
    if (consumed >= samples_)
      throw CheckpointError("saved after " + std::to_string(consumed) +
                            " samples of an epoch, but an epoch has " +
                            std::to_string(samples_) + " here");
    return [this, epoch, consumed] {
      epoch_ = epoch;
      consumed_ = consumed;
      make_order();
    };
  };
  return part;
}

}  // namespace brigade
