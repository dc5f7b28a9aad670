"""CUDA kernels that can be read, run, checked and counted, with or without a GPU."""
