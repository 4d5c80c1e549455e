// DiLoCo: every rank trains locally, and they average once in 20 steps, with int8.
#include "sines.h"

int main() {
  auto group = brigade::init_process_group();
  Batch data = make_data();
  torch::nn::Sequential model = make_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::optim::DiLoCo diloco(*model, optimizer, group,
                                {.period = 20, .hook = brigade::make_hook("int8")});

  for (int epoch = 1; epoch <= 5; ++epoch) {
    for (const Batch& batch : batches(data, group, epoch)) {
      optimizer.zero_grad();
      loss_of(model, batch).backward();
      diloco.step();  // the optimizer's, and the outer step if it is time
    }
    diloco.finish();  // between two exchanges the replicas differ
    print_loss(epoch, model, data);
  }
}
