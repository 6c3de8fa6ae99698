#!/usr/bin/env bash
# Runs the linter and the whole test suite in an environment of their own. Needs Python 3.10+ only.
#
#   bash scripts/test.sh                          the pinned set of constraints.txt, in .venv-test
#   TRANSFORMERS=4.57.6 bash scripts/test.sh      that version of transformers instead, in .venv-test-4.57.6
#   bash scripts/test.sh -k padding -n 0          further words go to pytest
#
# PYTHON chooses the interpreter; VENV names an environment of your own to use as it is. Two test processes with one
# thread each (-n, OMP_NUM_THREADS) suit small machines best: the models in the tests are tiny, so more threads only
# wait for each other.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

setup_env "$root/.venv-test${TRANSFORMERS:+-$TRANSFORMERS}" dev "${TRANSFORMERS:-}"
cd "$root"

say "ruff"
"$env_python" -m ruff check .
"$env_python" -m ruff format --check .

say "pytest"
export HF_HUB_OFFLINE=1 # no test needs the Hub, and none may wait for it
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$env_python" -m pytest -n 2 --dist worksteal "$@"
