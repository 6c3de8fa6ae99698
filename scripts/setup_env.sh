# Sourced by the other shell scripts: makes a virtual environment with this checkout installed in it.
#
# setup_env FOLDER EXTRAS [TRANSFORMERS_VERSION] sets $env_python to the interpreter of the environment. A second call
# with the same settings changes nothing. FOLDER/plainformer-setup records what the environment was made from. It says
# "unfinished" until everything is installed; an unfinished environment is made again.
#
# PYTHON chooses the interpreter. VENV names your own environment: it is used without installing anything. pip's own
# settings (PIP_* variables, its configuration files) apply.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
needed_kib=$((4 * 1024 * 1024)) # 4 GiB of free disk before an install starts

say() { printf '==> %s\n' "$*"; }

fail() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '       %s\n' "$@" >&2
    exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

version_of() {
    "$1" -c 'import sys; print("Python %d.%d.%d" % tuple(sys.version_info[:3]))' 2>/dev/null || echo "does not run"
}

# Prints the interpreter for the new environment.
find_python() {
    local candidate found=""
    local remedy=(
        "Install Python 3.10 or newer (from python.org, or with your system's package manager: apt, dnf, brew, ...)"
        "and run this again, or say where it is: PYTHON=/path/to/python3 bash $0"
    )
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || fail "PYTHON=$PYTHON: there is no such program." "${remedy[@]}"
        is_new_enough "$PYTHON" ||
            fail "Python 3.10 or newer is needed, but PYTHON=$PYTHON is: $(version_of "$PYTHON")." "${remedy[@]}"
        command -v "$PYTHON"
        return
    fi
    for candidate in python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
        found="$found $candidate ($(version_of "$candidate"))"
    done
    fail "Python 3.10 or newer is needed. Found:${found:- no Python at all}." "${remedy[@]}"
}

# Prints everything that an environment depends on. If this changes, the environment is out of date.
fingerprint() { # PYTHON EXTRAS TRANSFORMERS_VERSION
    "$1" - "$root" "$2" "$3" <<'PY'
import hashlib, pathlib, sys

root, extras, transformers = sys.argv[1:]
digest = hashlib.sha256()
for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
    digest.update(pathlib.Path(root, name).read_bytes())
print("python %d.%d.%d" % sys.version_info[:3], f"[{extras}]", f"transformers={transformers}", root, digest.hexdigest())
PY
}

check_disk() { # FOLDER
    local free_kib
    free_kib="$(df -Pk "$1" | awk 'NR == 2 { print $4 }')"
    [ "$free_kib" -ge "$needed_kib" ] || fail \
        "$1 has $((free_kib / 1024)) MiB of free disk; torch and its companions need $((needed_kib / 1024)) MiB, or twice" \
        "that with a GPU build of torch." \
        "Free some space, or put the repository on another disk, and run this again."
}

make_venv() { # FOLDER PYTHON
    local message
    say "making the virtual environment $1 with $(version_of "$2")"
    mkdir -p "$1"
    echo unfinished >"$1/plainformer-setup"
    # venv and ensurepip belong to Python, but some systems have them in separate packages.
    message="$("$2" -m venv "$1" 2>&1)" || message="${message:-venv failed}"
    "$1/bin/python" -m pip --version >/dev/null 2>&1 && return
    # virtualenv can replace the missing modules.
    "$2" -m virtualenv --clear "$1" >/dev/null 2>&1 && "$1/bin/python" -m pip --version >/dev/null 2>&1 &&
        echo unfinished >"$1/plainformer-setup" && return
    rm -rf "$1"
    [ -z "$message" ] || printf '%s\n' "$message" >&2
    fail "$2 cannot make a virtual environment with pip: its venv or ensurepip module is missing or broken." \
        "Install it (Debian and Ubuntu: apt install python3-venv) or 'pip install virtualenv', and run this again."
}

# pip prints its own message; this adds what to do about the most common ones.
explain_pip_failure() { # LOG
    local again="Run this again afterwards: what was downloaded is kept by pip."
    if grep -q "No space left on device" "$1"; then
        rm -rf "${1%/*}"
        fail "the disk is full. The unfinished environment was removed again." \
            "A GPU build of torch needs about 8 GiB while it is installed. Free some space (pip unpacks in TMPDIR)." "$again"
    elif grep -qE "NewConnectionError|NameResolutionError|Failed to establish a new connection|Max retries exceeded|\
ConnectTimeout|ReadTimeout|Read timed out|ProxyError|Temporary failure in name resolution" "$1"; then
        fail "no network: pip could not reach its package index." \
            "Check the connection; a proxy or a mirror is set with pip's own variables and configuration." "$again"
    elif grep -qE "No matching distribution found|ResolutionImpossible" "$1"; then
        fail "pip found no set of packages that fits $(version_of "$env_python") on $(uname -sm)." \
            "The lines above name the package. Another Python may help: PYTHON=python3.12 bash $0 ..." \
            "If it is a package that surely exists, pip could not read its package index: check the connection."
    fi
    fail "the installation did not succeed; the lines above say why, $1 says more." "$again"
}

setup_env() { # FOLDER EXTRAS [TRANSFORMERS_VERSION]
    local folder="$1" extras="$2" transformers="${3:-}" python want state="none"
    local stamp="$folder/plainformer-setup" constraints="$root/constraints.txt"

    if [ -n "${VENV:-}" ]; then
        env_python="$VENV/bin/python"
        is_new_enough "$env_python" || fail "VENV=$VENV is no environment with Python 3.10 or newer." \
            "Unset VENV and this script makes an environment by itself."
        say "using $VENV as it is"
        return
    fi
    env_python="$folder/bin/python"
    unset PYTHONHOME PYTHONPATH # they would add other packages to the environment

    [ ! -e "$folder" ] || state="$(cat "$stamp" 2>/dev/null || echo foreign)"
    [ "$state" != foreign ] ||
        fail "$folder exists and was not made by this script." "Move it away and run this again."
    # Without PYTHON, an environment keeps its interpreter.
    if [ -z "${PYTHON:-}" ] && [ "$state" != unfinished ] && is_new_enough "$env_python"; then
        python="$env_python"
    else
        python="$(find_python)" || exit 1
    fi
    want="$(fingerprint "$python" "$extras" "$transformers")"
    if [ "$state" = "$want" ] && is_new_enough "$env_python"; then
        say "$folder is up to date"
        return
    fi

    # A finished environment with the same Python is updated; any other one is made again.
    if [ "$state" = unfinished ] || [ "$(version_of "$env_python")" != "$(version_of "$python")" ]; then
        rm -rf "$folder"
    fi
    if [ ! -e "$folder" ]; then
        check_disk "$root"
        make_venv "$folder" "$python"
    fi
    echo unfinished >"$stamp"
    if [ -n "$transformers" ]; then
        constraints="$folder/constraints.txt"
        grep -vE '^(sentence-)?transformers==' "$root/constraints.txt" >"$constraints"
        echo "transformers==$transformers" >>"$constraints"
    fi
    say "installing plainformer[$extras] into $folder (this takes minutes the first time)"
    # PIP_USE_PEP517: older versions of pip otherwise run a package's setup.py with any setuptools that is installed.
    PIP_USER=0 PIP_USE_PEP517=1 "$env_python" -m pip install --disable-pip-version-check --log "$folder/pip.log" \
        --constraint "$constraints" --editable "$root[$extras]" || explain_pip_failure "$folder/pip.log"
    "$env_python" -c 'import torch, transformers' ||
        fail "torch or transformers was installed but does not import; the lines above say why."
    printf '%s\n' "$want" >"$stamp"
    say "installed: $("$env_python" -c 'import platform, torch, transformers
print("Python", platform.python_version() + ", torch", torch.__version__ + ", transformers", transformers.__version__)')"
}
