# CUDA and NCCL: see torch_port/nccl_module.cpp.
