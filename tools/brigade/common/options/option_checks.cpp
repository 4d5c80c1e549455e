#include "common/options/option_checks.h"

#include <charconv>
#include <cstdint>

namespace brigade::tool {

CLI::Validator not_empty() {
  return {[](const std::string& text) {
            return text.empty() ? std::string("the name is empty") : std::string();
          },
          ""};
}

CLI::Validator seed_number() {
  return {[](const std::string& text) {
            std::uint64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [stopped, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stopped == end) return std::string();
            return "'" + text + "' is no whole number from 0 to 18446744073709551615";
          },
          ""};
}

}  // namespace brigade::tool
