// Trains as ddp.cpp does; each rank keeps its share of the optimizer's state, and the run
// can be stopped and taken up again by any number of ranks.
//   brigade run -n 2 zero [FOLDER]
#include "sines.h"

int main(int argc, char** argv) {
  auto group = brigade::init_process_group();
  Batch data = make_data();
  torch::nn::Sequential net = make_model();
  brigade::DistributedDataParallel model(net, group);
  auto zero = brigade::optim::apply_zero_in_backward(model, "adamw:lr=0.01");

  const std::vector<brigade::CheckpointPart> parts{brigade::model_part(*net),
                                                   brigade::zero_part(*zero)};
  int64_t epoch = 0;
  if (argc > 1) epoch = brigade::load_checkpoint(argv[1], group, parts).value_or(0);
  while (++epoch <= 5) {
    zero->set_lr(epoch < 4 ? 1e-2 : 5e-3);
    for (const Batch& batch : batches(data, group, epoch)) {
      // Reduces, steps, hands the parameters round and drops the gradients.
      loss_of(model, batch).backward();
    }
    if (argc > 1) brigade::save_checkpoint(argv[1], epoch, group, parts);
    print_loss(epoch, model, data);
  }
}
