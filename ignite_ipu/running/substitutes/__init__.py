"""What a running script gets instead of CUDA, its engines, its loops: one module for each thing."""
