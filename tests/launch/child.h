// One child process with its own environment, for workers that end with a report, which
// run_ranks must not see.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "brigade/error.h"
#include "brigade/process_group.h"

namespace brigade::testing {

using Variables = std::map<std::string, std::string>;

// Longer than a child lives: a child that ends with another code than the alarm's did not
// wait for this limit.
constexpr std::chrono::seconds kNever{600};

// Exit codes of a child: 0 if its body returned, 2 ConfigError, 3 RendezvousError, 4
// TimeoutError, 5 MismatchError, 6 anything else; 1 comes from the watchdog.
struct Outcome {
  int code = -1;
  std::string text;  // its stderr
};

class Child {
 public:
  // Starts at once, with only those launcher variables that are given. REQUIRES: the
  // calling process has one thread.
  Child(const Variables& variables, const std::function<void()>& body) {
    if (pipe(pipe_) != 0) std::abort();
    pid_ = fork();
    if (pid_ != 0) {
      close(pipe_[1]);
      return;
    }
    alarm(90);  // it ends in any case
    dup2(pipe_[1], STDERR_FILENO);
    close(pipe_[0]);
    close(pipe_[1]);
    enter(variables);
    _exit(run(body));
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      finish();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }

  Outcome finish() {
    Outcome outcome;
    char buffer[4096];
    ssize_t count;
    while ((count = read(pipe_[0], buffer, sizeof buffer)) > 0) {
      outcome.text.append(buffer, static_cast<size_t>(count));
    }
    close(pipe_[0]);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
  }

 private:
  static void enter(const Variables& variables) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
          "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT",
          "TORCHELASTIC_RUN_ID", "BRIGADE_TIMEOUT"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

  static int run(const std::function<void()>& body) {
    auto say = [](const char* text) { fprintf(stderr, "%s\n", text); };
    try {
      body();
      return 0;
    } catch (const ConfigError& error) {
      return say(error.what()), 2;
    } catch (const RendezvousError& error) {
      return say(error.what()), 3;
    } catch (const TimeoutError& error) {
      return say(error.what()), 4;
    } catch (const MismatchError& error) {
      return say(error.what()), 5;
    } catch (const std::exception& error) {
      return say(error.what()), 6;
    }
  }

  int pipe_[2];
  pid_t pid_ = 0;
};

// Makes a group and uses it.
inline void join_and_sum(const ProcessGroupOptions& options = {}) {
  ProcessGroup group = init_process_group(options);
  at::Tensor x = at::ones({3});
  group.all_reduce(x);
  if (x[0].item<int>() != group.size()) throw std::runtime_error("wrong sum");
}

inline void expect_all_well(const std::vector<Outcome>& outcomes) {
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].code, 0) << "process " << i << ": " << outcomes[i].text;
  }
}

// Checks the exit code and the error's text.
inline void expect_outcome(const Outcome& outcome, int code,
                           const std::vector<std::string>& said) {
  EXPECT_EQ(outcome.code, code) << outcome.text;
  for (const std::string& part : said) {
    EXPECT_NE(outcome.text.find(part), std::string::npos)
        << "'" << part << "' in: " << outcome.text;
  }
}

}  // namespace brigade::testing
