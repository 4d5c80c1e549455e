#include "launch/worker_family.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "base/read_whole.h"
#include "brigade/error.h"

namespace brigade::launching {
namespace {

struct Status {
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
};

std::optional<Status> status_of(const std::string& pid) {
  const std::string text = base::read_whole("/proc/" + pid + "/stat");
  // The name before it is in brackets and may hold anything.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  Status status;
  std::istringstream fields(text.substr(name_end + 1));
  fields >> status.state >> status.parent >> status.group >> status.session;
  return status;
}

bool marked(const std::string& pid, const std::string& mark) {
  const std::string wanted = std::string(WorkerFamily::kMarkName) + "=" + mark;
  const std::string variables = base::read_whole("/proc/" + pid + "/environ");
  for (size_t at = 0; at < variables.size();) {
    const size_t end = std::min(variables.find('\0', at), variables.size());
    if (std::string_view(variables).substr(at, end - at) == wanted) return true;
    at = end + 1;
  }
  return false;
}

void kill_all(const WorkerFamily& family) {
  using namespace std::chrono;
  const auto deadline = steady_clock::now() + seconds(5);
  // Again and again: a process may fork between the look and the kill.
  while (!family.living().empty() && steady_clock::now() < deadline) {
    family.signal(SIGKILL);
    usleep(10'000);
  }
}

[[noreturn]] void watch(int pipe, WorkerFamily family, const std::string& folder) {
  prctl(PR_SET_NAME, "brigade-watch");
  setsid();
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  // Holds nothing of the launcher's: whoever reads its output must see the end of it.
  dup2(pipe, 0);
  const int null = open("/dev/null", O_RDWR);
  dup2(null, 1);
  dup2(null, 2);
  close_range(3, ~0U, 0);
  for (pid_t worker = 0;;) {
    const ssize_t count = read(0, &worker, sizeof worker);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof worker) break;
    if (worker == 0) _exit(0);
    if (worker < 0) family.clear();
    if (worker > 0) family.add(worker);
  }
  kill_all(family);
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  _exit(0);
}

}  // namespace

std::vector<pid_t> WorkerFamily::living() const {
  std::vector<pid_t> found;
  const auto ours = [&](pid_t id) {
    return std::ranges::find(workers_, id) != workers_.end();
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto status = status_of(name);
    if (!status || status->state == 'Z' || status->state == 'X') continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (ours(pid) || ours(status->group) || ours(status->session) || marked(name, mark_)) {
      found.push_back(pid);
    }
  }
  std::erase(found, getpid());
  return found;
}

void WorkerFamily::signal(int signal) const {
  // The groups first, each in one stroke; then those that left them.
  for (pid_t worker : workers_) {
    // One that was forked just now may not lead its group yet.
    if (kill(-worker, signal) != 0) kill(worker, signal);
  }
  for (pid_t pid : living()) {
    if (std::ranges::find(workers_, getpgid(pid)) == workers_.end()) kill(pid, signal);
  }
  if (signal == SIGKILL) return;
  for (pid_t worker : workers_) kill(-worker, SIGCONT);
}

Watcher::Watcher(const WorkerFamily& family, const std::string& temporary_folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(std::string("no pipe: ") + std::strerror(errno));
  pid_ = fork();
  if (pid_ < 0) throw Error(std::string("cannot fork: ") + std::strerror(errno));
  if (pid_ == 0) {
    close(ends[1]);
    watch(ends[0], family, temporary_folder);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

void Watcher::add(pid_t worker) {
  // It cannot fail unless someone killed the watcher; then PDEATHSIG alone must do.
  if (write(pipe_, &worker, sizeof worker) < 0) return;
}

Watcher::~Watcher() {
  add(0);
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string unique_mark() {
  std::random_device random;
  std::ostringstream text;
  text << getpid() << '.' << std::hex << random() << random();
  return text.str();
}

}  // namespace brigade::launching
