// A program outside of the project: includes, links and runs brigade and LibTorch.
#include <ATen/ops/full.h>
#include <brigade/process_group.h>

#include <cstdio>

int main() {
  brigade::ProcessGroup group = brigade::init_process_group();
  at::Tensor three = at::full({2}, 1.5);
  group.all_reduce(three);
  std::printf("rank %d of %d: %g\n", group.rank(), group.size(),
              three.sum().item<double>());
  return three.sum().item<double>() == 3.0 ? 0 : 1;
}
