// A program outside of the project: includes, links and runs brigade and LibTorch, and
// catches the library's errors.
#include <ATen/ops/full.h>
#include <brigade/hooks.h>
#include <brigade/process_group.h>

#include <cstdio>

bool catches_the_librarys_errors() {
  try {
    brigade::make_hook("no such hook");
  } catch (const brigade::ConfigError&) {
    return true;
  } catch (const std::exception&) {
  }
  return false;
}

int main() {
  brigade::ProcessGroup group = brigade::init_process_group();
  at::Tensor three = at::full({2}, 1.5);
  group.all_reduce(three);
  std::printf("rank %d of %d: %g\n", group.rank(), group.size(),
              three.sum().item<double>());
  return three.sum().item<double>() == 3.0 && catches_the_librarys_errors() ? 0 : 1;
}
