#include "train/interruption.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace brigade::tool {
namespace {

volatile sig_atomic_t noted_signal = 0;

void note_signal(int number) { noted_signal = number; }

}  // namespace

Interruption::Interruption() {
  noted_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

Interruption::~Interruption() {
  for (const int number : {SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
}

bool Interruption::raised() const { return noted_signal != 0; }

void Interruption::take() const {
  std::cout.flush();
  std::fflush(nullptr);
  const int number = noted_signal != 0 ? noted_signal : SIGINT;
  ::signal(number, SIG_DFL);
  ::raise(number);
  _exit(128 + number);
}

}  // namespace brigade::tool
