"""Small workloads, and for each one or more kernels that pass: what the rules are shown on.

``NAME.py`` is a workload in the form that users write their own (see `workloads.from_file`), and
``NAME_kernel.py`` or ``NAME_HOW_kernel.py`` a kernel for it. Nothing imports them.
"""
