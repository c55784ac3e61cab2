"""Kernels whose blocks, buffers and loop orders are parameters; `study_variants.py` prices them.

Every kernel module has one function `make(**parameters) -> Case`; `space.py` has the parameters.
"""
