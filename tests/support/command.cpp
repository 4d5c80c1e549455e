#include "support/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "base/input_file.h"
#include "support/folders_of_test.h"

namespace brigade::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

[[noreturn]] void become(std::vector<std::string>& arguments, const CommandOptions& options,
                         int in, int out, int err) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  for (const auto& [name, value] : options.environment) {
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(99);
}

int text_as_stdin(const std::string& text) {
  const int fd = memfd_create("stdin", MFD_CLOEXEC);
  if (write(fd, text.data(), text.size()) < 0) throw std::runtime_error("no memory file");
  lseek(fd, 0, SEEK_SET);
  return fd;
}

}  // namespace

std::vector<std::string> CommandResult::sorted_lines() const {
  std::vector<std::string> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

Command::Command(std::vector<std::string> arguments, CommandOptions options)
    : deadline_(steady_clock::now() + options.wall) {
  int out[2];
  int err[2];
  const int in = text_as_stdin(options.stdin_text);
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) throw std::runtime_error("no pipe");
  pid_ = fork();
  if (pid_ == 0) become(arguments, options, in, out[1], err[1]);
  setpgid(pid_, pid_);
  for (int fd : {in, out[1], err[1]}) close(fd);
  out_ = out[0];
  err_ = err[0];
}

Command::~Command() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int fd : {out_, err_}) {
    if (fd >= 0) close(fd);
  }
}

void Command::signal(int number) const { kill(pid_, number); }

bool Command::has_ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

bool Command::read_some() {
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - steady_clock::now());
  pollfd fds[]{{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (left.count() <= 0 || poll(fds, 2, static_cast<int>(left.count())) <= 0) return false;
  char buffer[4096];
  for (auto [fd, text] : {std::pair{&out_, &result_.out}, {&err_, &result_.err}}) {
    if (*fd < 0 || !fds[fd == &err_].revents) continue;
    const ssize_t count = read(*fd, buffer, sizeof buffer);
    if (count > 0) {
      text->append(buffer, static_cast<size_t>(count));
    } else {
      close(*fd);
      *fd = -1;
    }
  }
  return out_ >= 0 || err_ >= 0;
}

bool Command::wait_for_output(const std::string& text) {
  while (result_.out.find(text) == std::string::npos) {
    if (!read_some()) return result_.out.find(text) != std::string::npos;
  }
  return true;
}

CommandResult Command::finish() {
  while (read_some()) {
  }
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(pid_, &status, WNOHANG)) == 0 &&
         steady_clock::now() < deadline_) {
    usleep(2'000);
  }
  if (ended == pid_) {
    kill(-pid_, SIGKILL);
    pid_ = -1;
    result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  } else {
    result_.exit_code = 124;
    result_.err += "\n(killed by the test at its wall limit)\n";
  }
  return result_;
}

CommandResult run_command(std::vector<std::string> arguments, CommandOptions options) {
  return Command(std::move(arguments), std::move(options)).finish();
}

std::string built_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

std::string python_with_torch() {
  static const std::string found = [] {
    for (const char* python : {BRIGADE_SOURCE_DIR "/.venv/bin/python3", "python3"}) {
      const auto result = run_command({python, "-c", "import torch.distributed"},
                                      {.wall = milliseconds(60'000)});
      if (result.exit_code == 0) return std::string(python);
    }
    return std::string();
  }();
  return found;
}

namespace {

// Belongs to this test, or to the one in the process that started this one.
std::vector<std::string>& folders_made() {
  static std::string test;
  static std::vector<std::string> made;
  const auto* now = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name =
      now ? std::string(now->test_suite_name()) + "." + now->name() : "";
  if (name != test) {
    test = name;
    made.clear();
  }
  return made;
}

std::string folder_of_starter(size_t number) {
  const char* all = std::getenv(kFoldersOfStarter);
  std::istringstream lines(all ? all : "");
  std::string path;
  for (size_t line = 0; line <= number; ++line)
    if (!std::getline(lines, path)) return {};
  return path;
}

}  // namespace

std::string folders_of_this_test() {
  std::string all;
  for (const std::string& path : folders_made()) all += path + "\n";
  return all;
}

TemporaryFolder::TemporaryFolder() : path_(folder_of_starter(folders_made().size())) {
  if (path_.empty()) {
    path_ = std::filesystem::temp_directory_path() / "brigade_test_XXXXXX";
    if (!mkdtemp(path_.data())) throw std::runtime_error("cannot make " + path_);
  }
  folders_made().push_back(path_);
}

TemporaryFolder::~TemporaryFolder() {
  const char* others = std::getenv(kFoldersOfStarter);
  if (others && std::string(others).find(path_ + "\n") != std::string::npos) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::script(const std::string& name,
                                    const std::string& text) const {
  const std::string path = path_ + "/" + name;
  { std::ofstream(path) << text; }
  chmod(path.c_str(), 0755);
  return path;
}

bool none_left(const std::string& text) {
  const auto any = [&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      if (pid == std::to_string(getpid())) continue;
      // A zombie has neither a command line nor an environment.
      if (base::read_whole(entry.path() / "cmdline").find(text) != std::string::npos)
        return true;
      if (base::read_whole(entry.path() / "environ").find(text) != std::string::npos)
        return true;
    }
    return false;
  };
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (any()) {
    if (steady_clock::now() > deadline) return false;
    usleep(10'000);
  }
  return true;
}

}  // namespace brigade::testing
