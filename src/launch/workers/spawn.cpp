#include "launch/workers/spawn.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>

#include "brigade/launch.h"

namespace brigade::launching {

std::map<std::string, std::string> worker_environment(int local_rank, int workers,
                                                      const WorkerPlacement& place,
                                                      const LaunchOptions& options) {
  const std::string rank = std::to_string(place.first_rank + local_rank);
  const std::string world = std::to_string(place.world);
  std::map<std::string, std::string> variables{
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world},
      {"LOCAL_WORLD_SIZE", std::to_string(workers)},
      {"GROUP_RANK", std::to_string(place.node)},
      {"GROUP_WORLD_SIZE", std::to_string(std::max(options.nodes, place.node + 1))},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", place.master},
      {"MASTER_PORT", std::to_string(place.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", place.run_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(place.attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)}};
  const auto unless_set = [&](const char* name, const std::string& value) {
    if (!std::getenv(name)) variables[name] = value;
  };
  unless_set("OMP_NUM_THREADS", std::to_string(threads_per_worker(workers)));
  // As with torchrun, a worker whose peer died is ended. Brigade's own groups see to that
  // themselves (torch_port/nccl_module.cpp).
  unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // Otherwise a Python worker's output to a pipe would come only when it ends.
  unless_set("PYTHONUNBUFFERED", "1");
  for (const auto& [name, value] : options.environment) variables[name] = value;
  return variables;
}

namespace {

bool is_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode);
}

// Everything that allocates is made before the fork: the launcher may have threads, and
// after a fork their locks, malloc's too, stay as they were.
struct Image {
  std::vector<std::string> text;
  std::vector<char*> argv;
  std::vector<char*> envp;
};

Image make_image(const WorkerSpec& spec, const WorkerBody& body) {
  Image image;
  image.text = body.command;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!spec.environment.contains(text.substr(0, text.find('='))))
      image.text.push_back(text);
  }
  for (const auto& [name, value] : spec.environment)
    image.text.push_back(name + "=" + value);
  for (size_t i = 0; i < image.text.size(); ++i) {
    (i < body.command.size() ? image.argv : image.envp).push_back(image.text[i].data());
  }
  image.argv.push_back(nullptr);
  image.envp.push_back(nullptr);
  return image;
}

// The descriptors lie above 2 (see launcher.cpp), so no dup2 overwrites the next one.
void take_streams(const WorkerSpec& spec) {
  if (spec.in >= 0) dup2(spec.in, 0);
  if (spec.out >= 0) dup2(spec.out, 1);
  if (spec.err >= 0) dup2(spec.err, 2);
}

[[noreturn]] void become_program(const WorkerBody& body, const Image& image) {
  execve(body.path.c_str(), image.argv.data(), image.envp.data());
  const int error = errno;
  const char* why = error == ENOEXEC ? "not a program the system can run (no #! line?)"
                                     : strerrordesc_np(error);
  dprintf(2, "cannot run %s: %s\n", body.path.c_str(), why ? why : "unknown error");
  _exit(error == ENOENT ? 127 : 126);
}

[[noreturn]] void call_function(const WorkerSpec& spec, const WorkerBody& body) {
  for (int fd : spec.launchers_own) close(fd);
  for (const auto& [name, value] : spec.environment) setenv(name.c_str(), value.c_str(), 1);
  // OpenMP read its variables when the calling program was loaded.
  const auto threads = spec.environment.find("OMP_NUM_THREADS");
  if (threads != spec.environment.end()) at::set_num_threads(std::stoi(threads->second));
  setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const int code = record_errors([&] { (*body.function)(spec.rank); });
  std::cout.flush();
  std::cerr.flush();
  fflush(nullptr);
  // exit() would run what the calling program registered to run at its own end.
  _exit(code);
}

}  // namespace

std::string find_program(const std::string& name) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
      candidates.push_back((folder.empty() ? "." : folder) + "/" + name);
    }
  }
  std::string locked;
  for (const std::string& candidate : candidates) {
    if (!is_file(candidate)) continue;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    if (locked.empty()) locked = candidate;
  }
  if (!locked.empty()) {
    throw LaunchError("cannot run " + locked + ": it is not executable (chmod +x?)", 126);
  }
  if (candidates.size() == 1 && name.find('/') != std::string::npos) {
    throw LaunchError("cannot run " + name + ": there is no such program", 127);
  }
  const std::string hint = is_file(name) ? "; it lies in this folder: write ./" + name : "";
  throw LaunchError("cannot run " + name + ": no folder of PATH has it" + hint, 127);
}

pid_t spawn(const WorkerSpec& spec, const WorkerBody& body) {
  const Image image = body.function ? Image{} : make_image(spec, body);
  const pid_t launcher = getpid();
  // Otherwise both processes would write what is still in the buffers.
  if (body.function) fflush(nullptr), std::cout.flush();
  const pid_t pid = fork();
  if (pid < 0) {
    throw Error(std::string("cannot start a worker: ") + std::strerror(errno) +
                " (see ulimit -u and the memory limit)");
  }
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before the line above.
  if (getppid() != launcher) _exit(128 + SIGKILL);
  setsid();
  take_streams(spec);
  sigprocmask(SIG_SETMASK, &spec.mask, nullptr);
  if (!body.function) become_program(body, image);
  call_function(spec, body);
}

}  // namespace brigade::launching
