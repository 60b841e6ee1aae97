"""CUDA candidates: the CPU emulator and the fast build on a GPU."""
