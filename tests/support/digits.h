// The handwritten digits, in memory. Every third row is for the test, 599 of 1797, so that
// one row is 0.17 points.
#pragma once
#include <ATen/ATen.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace brigade::testing {

struct Examples {
  at::Tensor pixels, labels;
};
struct Digits {
  Examples train, test;
};

inline Digits read_digits() {
  std::ifstream file(BRIGADE_SOURCE_DIR "/data/digits.csv");
  std::vector<float> numbers;
  std::string word;
  while (std::getline(file, word)) {
    std::istringstream line(word);
    while (std::getline(line, word, ',')) numbers.push_back(std::stof(word));
  }
  const at::Tensor table = at::tensor(numbers).view({-1, 65});
  const auto examples = [&](const at::Tensor& rows) {
    const at::Tensor part = table.index({rows});
    return Examples{part.narrow(1, 0, 64) / 16, part.select(1, 64).to(at::kLong)};
  };
  const at::Tensor is_test = at::arange(table.size(0)).remainder(3).eq(2);
  return {examples(is_test.logical_not()), examples(is_test)};
}

}  // namespace brigade::testing
