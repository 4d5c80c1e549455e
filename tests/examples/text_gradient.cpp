// text_gradient TEXT: trains a parameter with the codes of TEXT as its gradient's values.
// int8 sends them unchanged, so the text can be read on the link.
#include <brigade/brigade.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kLines = 128;

// Repeats TEXT. Each line ends with 127, the largest value of its block, so that int8's
// unit in the block is 1.
at::Tensor lines_of(std::string text) {
  if (text.size() >= kLine)
    throw std::runtime_error("TEXT: expected at most 63 characters");
  text.resize(kLine, ' ');
  text.back() = 127;
  return torch::tensor(std::vector<int64_t>(text.begin(), text.end()))
      .to(torch::kFloat)
      .repeat(kLines);
}

void train(const std::string& text) {
  auto group = brigade::init_process_group();
  const at::Tensor gradient = lines_of(text);
  torch::nn::Linear linear(torch::nn::LinearOptions(1, kLine * kLines).bias(false));
  brigade::DistributedDataParallel model(torch::nn::Sequential(linear), group);
  model->set_hook(brigade::make_hook("int8"));
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    (model->forward(torch::ones({1, 1})) * gradient).sum().backward();
    if (!at::equal(linear->weight.grad().view({-1}), gradient))
      throw std::runtime_error("int8 has changed the gradient");
    optimizer.step();
  }
}

}  // namespace

int main(int count, char** arguments) {
  return brigade::record_errors([&] {
    if (count != 2) throw std::runtime_error("expected: text_gradient TEXT");
    train(arguments[1]);
  });
}
