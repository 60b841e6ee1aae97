"""Triton candidates: interpreter mode on a CPU, the compiler on a GPU."""
