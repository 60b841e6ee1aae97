"""Operators on Triton kernels and the host code that launches them, a module per family.

What the literature has for CUDA and Triton cannot express:

- barriers between threads and warps and everything about them (`sync-remove`, `sync2syncwarp`, the `*-warp-barrier`
  rules, `reduction-barrier-move-before-store`, `shared-*-use-local`, `share_removal`): the compiler places barriers and
  shared memory;
- `tidx2tidy` and `warpsize-16`: a program has no threads;
- `fdividef-fast`: division has no other spelling;
- reads of written data through the constant cache: the language has no such load.
"""
