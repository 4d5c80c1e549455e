#include <charconv>

#include "brigade/checkpoint.h"
#include "brigade/optimizer_in_backward.h"

namespace brigade {
namespace {

template <class State, class Visitor>
void for_each_field(State& state, Visitor&& visit) {
  visit("scale", state.scale);
  visit("growth_factor", state.growth_factor);
  visit("backoff_factor", state.backoff_factor);
  visit("growth_interval", state.growth_interval);
  visit("growth_tracker", state.growth_tracker);
}

// The shortest text that reads back as the same number.
template <class Number>
std::string text_of(Number value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

GradScalerState read(const PartState& part) {
  GradScalerState state;
  for_each_field(state, [&](const char* name, auto& value) {
    const auto found = part.values.find(name);
    if (found == part.values.end()) {
      throw CheckpointError(std::string("its value '") + name +
                            "' is not there; was the scaler that was saved not enabled?");
    }
    const std::string& text = found->second;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) {
      throw CheckpointError(std::string("its value '") + name + "' is '" + text +
                            "', which is no number");
    }
  });
  return state;
}

}  // namespace

CheckpointPart scaler_part(GradScaler& scaler, std::string name) {
  CheckpointPart part{.name = std::move(name)};
  part.save = [&scaler] {
    PartState out;
    if (auto state = scaler.state()) {
      for_each_field(*state, [&](const char* field, auto value) {
        out.values[field] = text_of(value);
      });
    }
    return out;
  };
  part.load = [&scaler](SavedPart saved) -> std::function<void()> {
    if (!scaler.is_enabled()) return [] {};
    const GradScalerState state = read(saved.states.at(0));
    try {
      GradScaler().load_state(state);  // throws for values that no scaler has
    } catch (const ConfigError& error) {
      throw CheckpointError(error.what());
    }
    return [&scaler, state] { scaler.load_state(state); };
  };
  return part;
}

}  // namespace brigade
