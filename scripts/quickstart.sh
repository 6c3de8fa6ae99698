#!/usr/bin/env bash
# From a fresh clone to a fine-tuned model that a stranger can load, in one command. Needs Python 3.10+ only.
#
#   bash scripts/quickstart.sh                                  the whole tour, from a real BERT checkpoint
#   bash scripts/quickstart.sh --help                           all options
#   bash scripts/quickstart.sh "what a film" "a waste of time"  your own sentences at the end
#
# The first run makes .venv in the repository and installs into it; later runs start at once. PYTHON chooses the
# interpreter; VENV names an environment of your own to use as it is.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

for word in "$@"; do # the options can be read before anything is installed
    case "$word" in -h | --help) exec "$(find_python)" "$root/scripts/quickstart.py" --help ;; esac
done
setup_env "$root/.venv" quickstart
export PYTHONUNBUFFERED=1 # what goes to a file shows at once
exec "$env_python" "$root/scripts/quickstart.py" "$@"
