"""Operators on CUDA C++, a module per family."""
