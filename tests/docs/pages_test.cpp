// The pages name every hook and option of the table, and their links lead somewhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "brigade/hooks/registry.h"

namespace brigade {
namespace {

const std::filesystem::path kRoot = BRIGADE_SOURCE_DIR;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

bool has(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

TEST(Pages, EveryHookHasACardAndARowInTheReadme) {
  const std::string cards = read(kRoot / "docs/hooks.md"),
                    readme = read(kRoot / "README.md");
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    EXPECT_TRUE(has(cards, "\n### " + name + "\n")) << name << " has no card";
    EXPECT_TRUE(has(readme, "\n| `" + name + "` |")) << name << " is not in README's table";
    for (std::string_view option : entry.options)
      EXPECT_TRUE(has(cards, "\n| `" + std::string(option) + "` |"))
          << name << ": " << option;
  }
}

TEST(Pages, EveryNameOfPyTorchsIsExplained) {
  const std::string cards = read(kRoot / "docs/hooks.md");
  for (const char* name :
       {"ALLREDUCE", "FP16_COMPRESS", "BF16_COMPRESS", "QUANTIZE_PER_TENSOR",
        "QUANTIZE_PER_CHANNEL", "POWER_SGD", "POWER_SGD_RANK2", "BATCHED_POWER_SGD",
        "BATCHED_POWER_SGD_RANK2", "NOOP"}) {
    EXPECT_TRUE(has(cards, "`" + std::string(name) + "`")) << name;
  }
}

TEST(Pages, EveryLinkLeadsToAFile) {
  std::vector<std::filesystem::path> pages{kRoot / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  const std::regex link(R"(\]\(([^)#\s]+)(#[^)]*)?\))");
  for (const auto& page : pages) {
    const std::string text = read(page);
    for (std::sregex_iterator found(text.begin(), text.end(), link), end; found != end;
         ++found) {
      const std::string target = (*found)[1];
      if (target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(std::filesystem::exists(page.parent_path() / target))
          << page.filename() << " links to " << target;
    }
  }
}

}  // namespace
}  // namespace brigade
