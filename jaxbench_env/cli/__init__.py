"""The command line: `jaxbench`."""

from jaxbench_env.cli.main import main

__all__ = ["main"]
