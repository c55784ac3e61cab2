"""Search for the best tunables of a kernel, one verdict at a time.

for point in tune(workload, space, method="hill", budget=100):
print(point.values, point.result.speedup)
"""

from baselines.tuning.log import Log, shipped
from baselines.tuning.search import METHODS, MissingPackage
from baselines.tuning.tune import Point, best, tune

__all__ = ["METHODS", "Log", "MissingPackage", "Point", "best", "shipped", "tune"]
