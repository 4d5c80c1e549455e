#include <array>

#include "base/option_spec.h"
#include "brigade/optim.h"

namespace brigade::optim {
namespace {

double read(const base::OptionSpec& given, const char* field, double value) {
  return given.number(field, value);
}
bool read(const base::OptionSpec& given, const char* field, bool value) {
  return given.flag(field, value);
}

template <class Options>
std::shared_ptr<Optimizer> make(std::string_view name, std::string_view text) {
  Options options;
  std::vector<std::string_view> known;
  Options::fields(options, [&](const char* field, auto&) { known.push_back(field); });
  const base::OptionSpec given(name, text, known, "optimizer");
  Options::fields(
      options, [&](const char* field, auto& value) { value = read(given, field, value); });
  return std::make_shared<OptimizerOf<Options>>(options);
}

struct Row {
  std::string_view name;
  std::shared_ptr<Optimizer> (*make)(std::string_view name, std::string_view text);
};
constexpr std::array kRows{
    Row{SGDOptions::kName, make<SGDOptions>},
    Row{AdamOptions::kName, make<AdamOptions>},
    Row{AdamWOptions::kName, make<AdamWOptions>},
    Row{AdagradOptions::kName, make<AdagradOptions>},
    Row{RMSpropOptions::kName, make<RMSpropOptions>},
    Row{AdadeltaOptions::kName, make<AdadeltaOptions>},
    Row{AdamaxOptions::kName, make<AdamaxOptions>},
    Row{RpropOptions::kName, make<RpropOptions>},
};

}  // namespace

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

std::shared_ptr<Optimizer> make_optimizer(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    return row.make(name, colon == std::string_view::npos ? std::string_view()
                                                          : spec.substr(colon + 1));
  }
  throw ConfigError("no optimizer named '" + std::string(name) + "'" +
                    base::suggestion(name, optimizer_names()));
}

}  // namespace brigade::optim
