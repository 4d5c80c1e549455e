// The pages name every hook and option of the table, and their links have targets.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "brigade/hooks.h"

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

TEST(Pages, EveryHookHasACardAndARowInTheTable) {
  const std::string cards = read(kRoot / "docs/hooks.md");
  for (const HookEntry& entry : hook_table()) {
    const std::string name(entry.name);
    EXPECT_TRUE(has(cards, "\n### " + name + "\n")) << name << " has no card";
    EXPECT_TRUE(has(cards, "\n| `" + name + "` |")) << name << " is not in the table";
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

std::vector<std::filesystem::path> markdown_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> pages;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  return pages;
}

// The pages in the root, in docs/, and in the folders that pages link to.
std::vector<std::filesystem::path> all_pages() {
  std::vector<std::filesystem::path> folders{kRoot, kRoot / "docs", kRoot / "data",
                                             kRoot / "tools/brigade", kRoot / ".github"};
  for (const char* parent : {"src", "tests", "examples", "bench"})
    for (const auto& entry : std::filesystem::directory_iterator(kRoot / parent))
      if (entry.is_directory()) folders.push_back(entry.path());
  std::vector<std::filesystem::path> pages;
  for (const auto& folder : folders)
    for (auto& page : markdown_in(folder)) pages.push_back(std::move(page));
  return pages;
}

TEST(Pages, AreAllThere) {
  const auto pages = all_pages();
  for (const char* name :
       {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/README.md",
        "docs/architecture.md", "src/engine/README.md", "tests/faults/TABLE.md"}) {
    EXPECT_NE(std::find(pages.begin(), pages.end(), kRoot / name), pages.end()) << name;
  }
}

TEST(Pages, AreInTheListOfPages) {
  const std::string list = read(kRoot / "docs/README.md");
  for (const auto& page : markdown_in(kRoot / "docs")) {
    const std::string name = page.filename();
    EXPECT_TRUE(name == "README.md" || has(list, "(" + name + ")"))
        << name << " is not in docs/README.md";
  }
}

TEST(Pages, EveryLinkLeadsToAFile) {
  const std::regex link(R"(\]\(([^)#\s]+)(#[^)]*)?\))");
  for (const auto& page : all_pages()) {
    const std::string text = read(page);
    for (std::sregex_iterator found(text.begin(), text.end(), link), end; found != end;
         ++found) {
      const std::string target = (*found)[1];
      if (target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(std::filesystem::exists(page.parent_path() / target))
          << page << " links to " << target;
    }
  }
}

// Looks at pages and at the headers themselves; CHANGELOG.md names earlier headers.
TEST(Pages, EveryPublicHeaderThatIsNamedIsThere) {
  std::vector<std::filesystem::path> files = all_pages();
  std::erase(files, kRoot / "CHANGELOG.md");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / "include"))
    if (entry.is_regular_file()) files.push_back(entry.path());
  const std::regex header(R"((^|[^/\w])(include/)?(brigade/[a-z_]+(/[a-z_]+)*\.h)\b)");
  for (const auto& file : files) {
    const std::string text = read(file);
    for (std::sregex_iterator found(text.begin(), text.end(), header), end; found != end;
         ++found) {
      const std::string name = (*found)[3];
      EXPECT_TRUE(std::filesystem::exists(kRoot / "include" / name))
          << file << " names " << name;
    }
  }
}

}  // namespace
}  // namespace brigade
