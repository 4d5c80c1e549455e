#include "top/screen.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace brigade::tool {
namespace {

volatile sig_atomic_t screen_shall_end = 0;

void note_end(int) { screen_shall_end = 1; }

void write_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

Screen::Screen(const Terminal& terminal) : terminal_(terminal) {
  struct sigaction action {};
  action.sa_handler = note_end;  // without SA_RESTART: poll() shall return
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
    sigaction(number, &action, nullptr);
  termios mode{};
  if (isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &mode) == 0) {
    before_ = mode;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
  }
  write_now("\033[?1049h\033[?25l");  // another screen, no cursor
}

Screen::~Screen() {
  write_now("\033[?25h\033[?1049l");
  if (before_) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

void Screen::draw(const std::vector<std::string>& lines) const {
  const auto columns = static_cast<std::size_t>(std::max(1, terminal_.width()));
  const auto rows = static_cast<std::size_t>(std::max(1, terminal_.height()));
  std::string text = "\033[H";
  for (std::size_t i = 0; i < std::min(lines.size(), rows); ++i)
    text += (i == 0 ? "" : "\r\n") + cut_to(lines[i], columns) + "\033[K";
  write_now(text + "\033[J");
}

bool Screen::asked_to_end(std::chrono::milliseconds limit) const {
  pollfd input{before_ ? STDIN_FILENO : -1, POLLIN, 0};
  poll(&input, 1, static_cast<int>(limit.count()));
  if (screen_shall_end) return true;
  if (!input.revents) return false;
  char key = 0;
  const ssize_t count = read(STDIN_FILENO, &key, 1);
  return count == 0 || key == 'q' || key == 'Q' || key == 3;
}

}  // namespace brigade::tool
