// Local SGD: after a warm-up the ranks average gradients within their host only, and
// parameters over all ranks at every 16th step.
#include "sines.h"

int main() {
  auto group = brigade::init_process_group();
  Batch data = make_data();
  brigade::DistributedDataParallel model(make_model(), group);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  brigade::optim::LocalSGD local(model, optimizer, {.warmup_steps = 40, .period = 16});

  for (int epoch = 1; epoch <= 5; ++epoch) {
    for (const Batch& batch : batches(data, group, epoch)) {
      model->zero_grad();
      loss_of(model, batch).backward();
      local.step();  // the optimizer's, and the mean if it is time
    }
    local.finish();  // between two means the replicas differ
    print_loss(epoch, model, data);
  }
}
