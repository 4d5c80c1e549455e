#include "launch/workers/job_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "base/input_file.h"
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

bool has_job_id(const std::string& pid, const std::string& job_id) {
  const std::string wanted = std::string(JobProcesses::kJobIdName) + "=" + job_id;
  const std::string variables = base::read_whole("/proc/" + pid + "/environ");
  for (size_t at = 0; at < variables.size();) {
    const size_t end = std::min(variables.find('\0', at), variables.size());
    if (std::string_view(variables).substr(at, end - at) == wanted) return true;
    at = end + 1;
  }
  return false;
}

void kill_all(const JobProcesses& processes) {
  using namespace std::chrono;
  const auto deadline = steady_clock::now() + seconds(5);
  // This repeats, because a process may fork between the look and the kill.
  while (!processes.living().empty() && steady_clock::now() < deadline) {
    processes.signal(SIGKILL);
    usleep(10'000);
  }
}

// A broken pipe must not raise a signal, however this program handles SIGPIPE.
void write_without_signal(int fd, const void* data, size_t size) {
  sigset_t broken, before, pending;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &broken, &before);
  const bool failed = write(fd, data, size) < 0 && errno == EPIPE;
  const timespec now{};
  if (failed && !sigismember(&pending, SIGPIPE)) sigtimedwait(&broken, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Waits for a child for up to a second.
bool has_ended(pid_t child, int& status) {
  using namespace std::chrono;
  const auto deadline = steady_clock::now() + seconds(1);
  while (true) {
    const pid_t found = waitpid(child, &status, WNOHANG);
    if (found == child || (found < 0 && errno != EINTR)) return true;
    if (steady_clock::now() >= deadline) return false;
    usleep(500);
  }
}

[[noreturn]] void watch(int pipe, JobProcesses processes, const std::string& folder) {
  prctl(PR_SET_NAME, "brigade-watch");
  setsid();
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  // The child holds no descriptor of the launcher: readers must see the end of its output.
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
    if (worker == -1) processes.clear();
    if (worker < -1) processes.remove(-worker);
    if (worker > 0) processes.add(worker);
  }
  kill_all(processes);
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  _exit(0);
}

}  // namespace

std::vector<pid_t> JobProcesses::living() const {
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
    if (ours(pid) || ours(status->group) || ours(status->session) ||
        has_job_id(name, job_id_)) {
      found.push_back(pid);
    }
  }
  std::erase(found, getpid());
  return found;
}

void JobProcesses::signal(int signal) const {
  // Groups are signalled first, each at once; then the processes that left them.
  for (pid_t worker : workers_) {
    // A child that was forked just now may not lead its group yet.
    if (kill(-worker, signal) != 0) kill(worker, signal);
  }
  for (pid_t pid : living()) {
    if (std::ranges::find(workers_, getpgid(pid)) == workers_.end()) kill(pid, signal);
  }
  if (signal == SIGKILL) return;
  for (pid_t worker : workers_) kill(-worker, SIGCONT);
}

Guardian::Guardian(const JobProcesses& processes, const std::string& temporary_folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(std::string("no pipe: ") + std::strerror(errno));
  pid_ = fork();
  if (pid_ < 0) throw Error(std::string("cannot fork: ") + std::strerror(errno));
  if (pid_ == 0) {
    close(ends[1]);
    watch(ends[0], processes, temporary_folder);
  }
  close(ends[0]);
  pipe_ = ends[1];
  // A stopped guardian does not read.
  fcntl(pipe_, F_SETFL, O_NONBLOCK);
}

void Guardian::add(pid_t worker) {
  // It fails only if someone killed or stopped the guardian; then PDEATHSIG must do alone.
  write_without_signal(pipe_, &worker, sizeof worker);
}

Guardian::~Guardian() {
  add(0);
  close(pipe_);
  int status = 0;
  const bool gone = has_ended(pid_, status);
  if (!gone) kill(pid_, SIGCONT);
  if (gone || has_ended(pid_, status)) {
    if (!WIFSIGNALED(status)) return;
    const char* name = sigabbrev_np(WTERMSIG(status));
    std::fprintf(
        stderr,
        "brigade: the process that watches over this job, brigade-watch, was ended "
        "by SIG%s; the job was not disturbed\n",
        name ? name : "?");
    return;
  }
  kill(pid_, SIGKILL);
  has_ended(pid_, status);
}

std::string unique_job_id() {
  std::random_device random;
  std::ostringstream text;
  text << getpid() << '.' << std::hex << random() << random();
  return text.str();
}

}  // namespace brigade::launching
