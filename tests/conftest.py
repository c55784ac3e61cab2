"""Shared fixtures: a cache directory of the test run's own, and kernel texts of every status."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"

# Before anything evaluates: tests neither read nor fill the user's cache, and the worker
# processes of a test run share one.
_cache = tempfile.TemporaryDirectory(prefix="jaxbench-test-cache-")
os.environ["JAXBENCH_CACHE"] = _cache.name
# Tests mean what they evaluate, and look into the evaluator's processes: those of the cache and of
# the service switch them on for themselves.
os.environ["JAXBENCH_CACHE_BYTES"] = "0"
os.environ["JAXBENCH_SERVICE"] = "off"
# As in the judge: a cast to bfloat16 is meant. XLA would otherwise skip some on a CPU.
os.environ.setdefault("XLA_FLAGS", "--xla_allow_excess_precision=false")


@pytest.fixture(scope="session")
def attempts():
    """Kernel texts for rms_norm by the status that each must get."""
    folder = FIXTURES / "attempts"
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.py"))}


# A shell's background job ignores SIGINT and so would the children that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
