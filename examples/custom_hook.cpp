// Trains a small network with a hook of its own: custom_hook [HOOK], see custom_hooks.h.
#include "custom_hooks.h"
#include "sines.h"

constexpr const char* kUsage =
    "custom_hook [HOOK]\n"
    "Trains a small network. HOOK is mean, half, scaled_half, mixed or topk, all of which\n"
    "are in custom_hooks.h (default: topk), or a hook of the library: fp16,\n"
    "powersgd:rank=2,start=10 …\n"
    "Start it on several processes with: brigade run -n 2 custom_hook HOOK\n";

void train(const std::string& hook) {
  auto group = brigade::init_process_group();
  Batch data = make_data();
  brigade::DistributedDataParallel model(make_model(), group);
  model->set_hook(custom::make_hook(hook));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int epoch = 1; epoch <= 5; ++epoch) {
    for (const Batch& batch : batches(data, group, epoch)) {
      optimizer.zero_grad();
      loss_of(model, batch).backward();
      optimizer.step();
    }
    print_loss(epoch, model, data);
  }
  const brigade::HookTraffic traffic = model->hook_stats().last_step;
  std::printf("%s: %ld bytes of gradients a step, %ld sent, in %ld collectives\n",
              model->hook()->name().c_str(), traffic.bytes_before, traffic.bytes_sent,
              traffic.collectives);
}

int main(int count, char** arguments) {
  const std::string hook = count > 1 ? arguments[1] : "topk";
  if (hook == "--help" || hook == "-h") return std::fputs(kUsage, stdout) < 0;
  return brigade::record_errors([&] {
    if (count > 2) throw brigade::ConfigError("expected one hook\n" + std::string(kUsage));
    train(hook);
  });
}
