"""Policies to measure others by, and the kernels that they start from."""
