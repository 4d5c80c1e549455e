// The loss of training, in what programs print.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace brigade::launching {

// "step 3 loss 0.31", "train_loss=0.31", "Loss: nan": the first number right behind the
// word loss, with only spaces, ':' and '=' between them.
std::optional<double> printed_loss(std::string_view line);

// All that a worker has printed so far.
struct PrintedLosses {
  std::int64_t count = 0;
  std::int64_t bad = 0;  // of them no finite number
  double last = 0;

  void add(double loss);
  // Those of two streams together; `last` is this one's if it has any.
  PrintedLosses with(const PrintedLosses& other) const;
};

}  // namespace brigade::launching
