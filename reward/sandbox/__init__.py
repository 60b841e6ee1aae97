"""Processes around a candidate: the zygote, the child, isolation, buffers and the wire between them."""
