"""Rollouts: policies run on workloads, and the records that they leave."""
