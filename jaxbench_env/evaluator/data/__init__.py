"""Baselines as data, a file for each pair of compiler versions: scripts/refresh_baselines.py."""
