#!/usr/bin/env bash
# Runs the slow suite and keeps its closing lines in docs/slow_suite.txt.
#   scripts/run_slow.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
{
  python -c "import jax, platform; print('Python', platform.python_version(), 'jax', jax.__version__)"
  python -m pytest -q -m slow "$@" | tail -n 25
} | tee docs/slow_suite.txt
