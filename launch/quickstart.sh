#!/usr/bin/env bash
# A first run from nothing: installs what is missing, builds, makes a small corpus, a tokenizer and
# shards, pre-trains a small tensor-train BERT on two ranks, and shows what came of it.
set -euo pipefail

usage() {
    echo "Usage: launch/quickstart.sh [--output FOLDER]"
    echo
    echo "Installs, builds, and pre-trains a small tensor-train BERT on a corpus that it makes itself:"
    echo "one to three minutes on two idle cores."
    echo "  --output FOLDER  gets corpus, shards and run (default: runs/quickstart, or the next"
    echo "                   free runs/quickstart_N)"
}

fail() {
    echo "quickstart: $*" >&2
    exit 1
}

say() {
    printf '\n== %s\n' "$*"
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$root/build/cpu/ttrain
recipe=$root/recipes/quickstart/recipe.yaml

free_folder() {
    local folder=$root/runs/quickstart number=2
    while [[ -e "$folder" ]]; do
        folder=$root/runs/quickstart_$number
        number=$((number + 1))
    done
    echo "$folder"
}

build() {
    local generator=()
    if [[ ! -e "$root/build/cpu/CMakeCache.txt" ]]; then
        generator=(-G Ninja)
    fi
    (cd "$root" && cmake --preset cpu "${generator[@]}" >/dev/null)
    cmake --build "$root/build/cpu" --target ttrain --parallel "$cores"
}

prepare() {
    "$program" prepare synthetic --documents 4000 --output "$output/corpus.txt"
    "$program" prepare tokenizer --input "$output/corpus.txt" --vocab-size 1000 \
        --threads "$cores" --output "$output/tokenizer.model"
    local length
    for length in 64 128; do
        "$program" prepare text --input "$output/corpus.txt" --tokenizer "$output/tokenizer.model" \
            --sequence-length "$length" --duplicates 2 --validation-fraction 0.05 \
            --output "$output/seq$length"
    done
}

# Two ranks share the cores; a model this small gains nothing from more than four threads a rank.
train() {
    local threads=$((cores / 2))
    threads=$((threads < 1 ? 1 : threads > 4 ? 4 : threads))
    local launch=(mpirun -np 2 --bind-to none --oversubscribe)
    if [[ "$(id -u)" == 0 ]]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    "${launch[@]}" "$program" pretrain "$recipe" "output=$output/run" "threads=$threads" \
        "data.tokenizer=$output/tokenizer.model" \
        "phases.0.train=$output/seq64/train_*.hdf5" \
        "phases.0.validation=$output/seq64/validation_*.hdf5" \
        "phases.1.train=$output/seq128/train_*.hdf5" \
        "phases.1.validation=$output/seq128/validation_*.hdf5" </dev/null
}

output=
while [[ $# -gt 0 ]]; do
    case $1 in
    --output)
        [[ $# -ge 2 ]] || fail "--output: expected a folder"
        output=$2
        shift 2
        ;;
    --output=*)
        output=${1#--output=}
        shift
        ;;
    --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
done
if [[ -z "$output" ]]; then
    output=$(free_folder)
elif [[ -e "$output" && -n "$(ls -A "$output")" ]]; then
    fail "$output: expected a new or empty folder; name another, or remove it first"
fi
cores=$(nproc)

say "packages"
bash "$root/launch/install.sh"
say "build: build/cpu"
build
mkdir -p "$output"
output=$(cd "$output" && pwd)
say "corpus, tokenizer and shards: $output"
prepare
say "pre-training on two ranks, sequence length 64, then 128"
train
say "what came of it (again at any time: build/cpu/ttrain inspect $output/run)"
"$program" inspect "$output/run"
say "the same as a page, to be opened in a browser"
"$program" report "$output/run"
echo
echo "done in $SECONDS s"
