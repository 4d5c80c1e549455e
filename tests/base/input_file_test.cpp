#include "base/input_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "brigade/error.h"
#include "support/command.h"

namespace brigade::testing {
namespace {

std::string why_not_read(const std::string& path) {
  try {
    return "it was read: " + base::InputFile(path).text();
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(InputFile, GivesARegularFilesBytes) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  std::ofstream(path) << "0123456789";
  const base::InputFile file(path);
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.text(), "0123456789");
  std::string part(3, ' ');
  file.read(4, part.data(), 3);
  EXPECT_EQ(part, "456");
  std::filesystem::resize_file(path, 5);
  EXPECT_THROW(file.read(4, part.data(), 3), Error);
  std::filesystem::create_symlink(path, folder.path() + "/link");
  EXPECT_EQ(why_not_read(folder.path() + "/link"), "it was read: 01234");
}

// Without O_NONBLOCK the first of these waits for ever.
TEST(InputFile, RefusesWhatIsNoRegularFileWithoutWaiting) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(why_not_read(path), "it is a pipe, not a regular file");
  EXPECT_EQ(why_not_read("/dev/zero"), "it is a device, not a regular file");
  EXPECT_EQ(why_not_read(folder.path()), "it is a folder, not a regular file");
  const std::string link = folder.path() + "/link";
  std::filesystem::create_symlink(path, link);
  EXPECT_EQ(why_not_read(link), "it is a pipe, not a regular file");
  std::filesystem::remove(path);
  EXPECT_EQ(why_not_read(link),
            "cannot open it: No such file or directory; it is a symbolic link to nothing");
  EXPECT_EQ(why_not_read(path), "cannot open it: No such file or directory");
  std::filesystem::create_symlink(link, path);
  EXPECT_NE(why_not_read(link).find("cannot open it"), std::string::npos);
}

}  // namespace
}  // namespace brigade::testing
