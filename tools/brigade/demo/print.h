// Prints the demo's results on the terminal.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/terminal.h"

namespace brigade::tool {

// Shows all trainings below each other, drawn again after every step, or once at the end
// where lines cannot be overwritten.
class Board {
 public:
  // Each training has `steps` steps; only one rank shows it.
  Board(bool shown, int steps) : shown_(shown), steps_(steps) {}
  void set(std::size_t place, const Series& series);
  void draw();
  void close();

 private:
  Terminal terminal_;
  bool shown_;
  int steps_;
  std::vector<std::string> lines_;
};

// The results over one link, beside those of all-reduce.
void print_table(Terminal& terminal, std::span<const Series> all, const std::string& link);
// Says whether all replicas that must be equal are, and returns that.
bool print_replicas(Terminal& terminal, std::span<const Series> all);
// Suggests what to try next.
void print_suggestions(Terminal& terminal);

}  // namespace brigade::tool
