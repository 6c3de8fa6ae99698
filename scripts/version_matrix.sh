#!/usr/bin/env bash
# Checkpoints written under three versions of transformers, read under each: a table, and failure if any differs.
#
#   bash scripts/version_matrix.sh                     4.57.6, 5.3.0 and the pinned one of constraints.txt
#   VERSIONS="4.57.6 5.24.0" bash scripts/version_matrix.sh
#
# The environments are those of scripts/test.sh. PYTHON chooses the interpreter.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

unset VENV TRANSFORMERS # one environment would be no matrix
pinned="pinned"
versions="${VERSIONS:-4.57.6 5.3.0 $pinned}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

pythons=()
for version in $versions; do
    [ "$version" != "$pinned" ] || version=""
    setup_env "$root/.venv-test${version:+-$version}" dev "$version"
    pythons+=("$env_python")
    say "writing checkpoints with $env_python"
    "$env_python" "$root/scripts/version_matrix.py" write "$folder"
done
for python in "${pythons[@]}"; do
    for way in package stranger; do
        say "reading them with $python, $way"
        "$python" "$root/scripts/version_matrix.py" read "$folder" "$way"
    done
done
"${pythons[0]}" "$root/scripts/version_matrix.py" table "$folder"
