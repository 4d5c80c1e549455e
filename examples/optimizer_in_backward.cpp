// Trains as ddp.cpp does, with an optimizer that steps while gradients still arrive.
#include "sines.h"

int main() {
  auto group = brigade::init_process_group();
  Batch data = make_data();
  brigade::DistributedDataParallel model(make_model(), group);
  model->set_hook(brigade::make_hook("fp16"));  // any, or none
  auto adamw = std::make_shared<brigade::optim::AdamW>(
      brigade::optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.01});
  brigade::optim::apply_optimizer_in_backward(model, adamw);

  for (int epoch = 1; epoch <= 5; ++epoch) {
    adamw->set_lr(epoch < 4 ? 1e-2 : 5e-3);
    for (const Batch& batch : batches(data, group, epoch)) {
      loss_of(model, batch).backward();  // averages, steps, drops the gradients
    }
    print_loss(epoch, model, data);
  }
}
