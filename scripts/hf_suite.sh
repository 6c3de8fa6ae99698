#!/usr/bin/env bash
# Runs transformers' own model tests against every Plainformer class. Needs Python 3.10+ only, and the network once.
#
#   bash scripts/hf_suite.sh                          with the pinned set of constraints.txt, in .venv-test
#   TRANSFORMERS=4.57.6 bash scripts/hf_suite.sh      with that version of transformers, in .venv-test-4.57.6
#   bash scripts/hf_suite.sh -k resize                further words go to pytest
#
# The environment is that of test.sh. It ends with four numbers: passed, skipped by them, skipped by us, failed.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

setup_env "$root/.venv-test${TRANSFORMERS:+-$TRANSFORMERS}" dev "${TRANSFORMERS:-}"
exec "$env_python" "$root/scripts/hf_suite.py" "$@"
