#!/bin/sh
# Reads with other people's Python packages what ttrain writes.
set -eu

usage() {
    cat <<'USAGE'
Usage: tests/interop/run.sh [--no-install | --install-only] [PROGRAM]

Runs the tests against other people's Python packages. PROGRAM is build/cpu/ttrain where none is
given. The packages of requirements.txt go into a virtual environment, .venv at the top of the
repository or the folder that TTRAIN_VENV names; it is made where it is missing.
  --no-install    where it is missing, end with status 77 (skipped) instead
  --install-only  make it, and run no test

With TTRAIN_INTEROP_TORCH=1 the large packages of requirements-torch.txt are wanted as well; without
them the tests that need PyTorch skip themselves.
USAGE
}

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${TTRAIN_VENV:-$root/.venv}
install=yes
case ${1:-} in
--help)
    usage
    exit 0
    ;;
--no-install)
    install=no
    shift
    ;;
--install-only)
    install=only
    shift
    ;;
esac
program=${1:-$root/build/cpu/ttrain}

modules='h5py, numpy, safetensors, sentencepiece, tensorboard'
requirements="-r $here/requirements.txt"
if [ "${TTRAIN_INTEROP_TORCH:-0}" = 1 ]; then
    modules="$modules, torch, transformers"
    requirements="$requirements -r $here/requirements-torch.txt"
fi

if ! "$venv/bin/python" -c "import $modules" 2>/dev/null; then
    if [ $install = no ]; then
        echo "skipped: no Python packages in $venv; tests/interop/run.sh installs them"
        exit 77
    fi
    python3 -m venv "$venv"
    # shellcheck disable=SC2086 # a list of words
    "$venv/bin/pip" install --quiet --disable-pip-version-check $requirements
fi
if [ $install = only ]; then
    exit 0
fi
if [ ! -x "$program" ]; then
    echo "run.sh: no program $program: build first, or name one" >&2
    exit 1
fi

export TTRAIN_PROGRAM="$program" OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
cd "$here"
exec "$venv/bin/python" -m unittest --verbose
