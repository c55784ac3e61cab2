"""Programs that run in processes of their own.

`zygote`, `trace` and `compile` are started by their file names and import nothing of this project,
so that a process which reads hostile input holds no reference, seed or expected value.
"""
