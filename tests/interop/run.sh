#!/bin/sh
# Reads with other people's Python packages what ttrain writes.
#
#   tests/interop/run.sh [--no-install] [PROGRAM]
#
# PROGRAM is build/cpu/ttrain where none is given. The packages of requirements.txt go into a virtual
# environment, .venv at the top of the repository or the folder that TTRAIN_VENV names; it is made
# where it is missing. With --no-install a missing one ends the run with status 77 instead: skipped.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${TTRAIN_VENV:-$root/.venv}
install=yes
if [ "${1:-}" = --no-install ]; then
    install=no
    shift
fi
program=${1:-$root/build/cpu/ttrain}

if ! "$venv/bin/python" -c 'import h5py, numpy, safetensors, sentencepiece, torch, transformers' \
    2>/dev/null; then
    if [ $install = no ]; then
        echo "skipped: no Python packages in $venv; tests/interop/run.sh installs them"
        exit 77
    fi
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet -r "$here/requirements.txt"
fi
if [ ! -x "$program" ]; then
    echo "run.sh: no program $program: build first, or name one" >&2
    exit 1
fi

export TTRAIN_PROGRAM="$program" OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
cd "$here"
exec "$venv/bin/python" -m unittest --verbose
