"""CPU kernels: builders of TIR functions, gathered in ``set.CpuKernels``."""
