#!/usr/bin/env bash
# Builds and tests all that this machine can, and says at the end what ran, what failed, and what was
# left out and why.
set -euo pipefail

usage() {
    echo "Usage: launch/test.sh [--fast] [--label LABEL]"
    echo
    echo "Installs what the tests need, builds with warnings as errors, and runs: every test; the same"
    echo "under AddressSanitizer and UndefinedBehaviorSanitizer; the CUDA sources on a simulated GPU; the"
    echo "format and clang-tidy checks; the fuzzers, 20 s each; where there is nvcc, the build for GPUs."
    echo "  --fast         the plain build, its tests and the format check only"
    echo "  --label LABEL  tests with this CTest label only, and no checks of the source:"
    echo "                 unit, ops, reference, mpi, end_to_end, interop, fuzz or simulator"
    echo
    echo "TTRAIN_INTEROP_TORCH=1 also installs PyTorch (large), for the tests against it."
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
fast=false
label=
while [[ $# -gt 0 ]]; do
    case $1 in
    --fast)
        fast=true
        shift
        ;;
    --label)
        [[ $# -ge 2 ]] || { usage >&2; exit 2; }
        label=$2
        shift 2
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

labels="unit ops reference mpi end_to_end interop fuzz simulator"
if [[ -n "$label" && " $labels " != *" $label "* ]]; then
    echo "test: --label: expected one of $labels, found '$label'" >&2
    exit 2
elif $fast && [[ "$label" == simulator ]]; then
    echo "test: --fast leaves the simulator out" >&2
    exit 2
fi

cores=$(nproc)
logs=$root/build/test_logs
ran=() failed=() left_out=()
passed_tests=0 failed_tests=0 skipped_tests=0
fuzz_seconds=20

# stage NAME COMMAND...: runs it, notes how it ended, and goes on either way.
stage() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        ran+=("$name: $((SECONDS - start)) s")
    else
        failed+=("$name")
        return 1
    fi
}

leave_out() {
    left_out+=("$1: $2")
}

# build FOLDER PRESET [OPTION...]: into build/FOLDER.
build() {
    local folder=build/$1 preset=$2 generator=()
    shift 2
    if [[ ! -e "$folder/CMakeCache.txt" ]]; then
        generator=(-G Ninja)
    fi
    cmake --preset "$preset" -B "$folder" "${generator[@]}" -DTTRAIN_WERROR=ON "$@" >/dev/null &&
        cmake --build "$folder" --parallel "$cores"
}

# Adds what CTest counted to the sums of all suites.
count_tests() {
    local failures all skipped
    failures=$(sed -n 's/.*tests passed, \([0-9]*\) tests failed out of.*/\1/p' "$1" | tail -n 1)
    all=$(sed -n 's/.*tests failed out of \([0-9]*\).*/\1/p' "$1" | tail -n 1)
    skipped=$(grep -c '\*\*\*Skipped' "$1" || true)
    failed_tests=$((failed_tests + ${failures:-0}))
    skipped_tests=$((skipped_tests + skipped))
    passed_tests=$((passed_tests + ${all:-0} - ${failures:-0} - skipped))
}

# suite PRESET [CTEST OPTION...]
suite() {
    local preset=$1 log=$logs/$1.log status=0
    shift
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$cores" \
        ${label:+--label-regex "^$label\$"} "$@" 2>&1 | tee "$log" || status=1
    count_tests "$log"
    return $status
}

sources() {
    git ls-files --cached --others --exclude-standard -- '*.c' '*.h' '*.cpp' '*.hpp' '*.cu' '*.cuh'
}

check_format() {
    sources | xargs -d '\n' clang-format-14 --dry-run --Werror
}

# clang-tidy reads what build/cpu compiles, with its flags less those that only gcc knows.
check_tidy() {
    mkdir -p build/tidy
    sed -e 's/ -fno-trapping-math//' build/cpu/compile_commands.json \
        >build/tidy/compile_commands.json
    sed -n 's/^ *"file": "\(.*\)",\?$/\1/p' build/tidy/compile_commands.json | sort -u |
        xargs -d '\n' -n 1 -P "$cores" clang-tidy-14 -p build/tidy --quiet \
            --extra-arg=-Wno-unknown-warning-option 2>/dev/null
}

fuzzer_corpus() {
    local target=$1 corpus=$2
    mkdir -p "$corpus"
    local recipe
    if [[ $target == fuzz_recipe ]]; then
        for recipe in recipes/*/*.yaml; do
            cp "$recipe" "$corpus/${recipe//\//_}"
        done
    fi
}

run_fuzzers() {
    local target status=0 source
    mkdir -p build/fuzz/corpus
    for source in tests/fuzz/fuzz_*.c; do
        target=$(basename "$source" .c)
        if [[ $target == fuzz_shard ]]; then
            leave_out "$target" "libhdf5 1.10 itself crashes on some crafted files; run it by hand"
            continue
        fi
        fuzzer_corpus "$target" "build/fuzz/corpus/$target"
        if (cd build/fuzz && ASAN_OPTIONS=allocator_may_return_null=1 "tests/fuzz/$target" \
            -max_total_time=$fuzz_seconds -max_len=65536 -detect_leaks=0 -print_final_stats=1 \
            "corpus/$target") >"$logs/$target.log" 2>&1; then
            sed -n "s/^stat::number_of_executed_units: */$target: inputs tried: /p" \
                "$logs/$target.log"
        else
            tail -n 40 "$logs/$target.log"
            status=1
        fi
    done
    return $status
}

plain_suite() {
    stage "build/cpu" build cpu cpu || return 0
    if ! tests/interop/run.sh --install-only >"$logs/interop.log" 2>&1; then
        leave_out interop "the Python packages could not be installed: $(tail -n 1 "$logs/interop.log")"
    elif [[ "${TTRAIN_INTEROP_TORCH:-0}" != 1 ]]; then
        leave_out "interop with PyTorch" "large; TTRAIN_INTEROP_TORCH=1 installs it"
    fi
    stage "tests" suite cpu || true
}

sanitized_suite() {
    local preset=$1
    if stage "build/$preset" build "$preset" "$preset"; then
        stage "tests under $preset" suite "$preset" --label-exclude '^interop$' || true
    fi
}

# The CUDA sources, run on the CPU by tests/simulator/.
simulated_suite() {
    if stage "build/simulator" build simulator simulator; then
        local selection=()
        if [[ -z "$label" ]]; then
            selection=(--label-exclude '^end_to_end$')
            leave_out "runs of four simulated GPUs" "ten minutes; launch/test.sh --label simulator"
        fi
        stage "tests on the simulated GPU" suite simulator --label-regex '^simulator$' \
            "${selection[@]}" || true
    fi
}

source_checks() {
    if command -v clang-format-14 >/dev/null; then
        stage "format (clang-format 14)" check_format || true
    else
        leave_out "format" "no clang-format-14; other versions format otherwise"
    fi
    if $fast; then
        leave_out "clang-tidy" "--fast"
    elif command -v clang-tidy-14 >/dev/null && [[ -e build/cpu/compile_commands.json ]]; then
        stage "clang-tidy 14" check_tidy || true
    else
        leave_out "clang-tidy" "no clang-tidy-14"
    fi
}

fuzzers() {
    if ! command -v clang >/dev/null; then
        leave_out "fuzzers" "no clang"
    elif stage "build/fuzz" build fuzz asan -DTTRAIN_FUZZERS=ON \
        -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++; then
        stage "fuzzers, $fuzz_seconds s each" run_fuzzers || true
    fi
}

kernel_resources() {
    local status=0
    launch/check_kernel_resources.sh >"$logs/kernel_resources.log" || status=1
    tail -n 1 "$logs/kernel_resources.log"
    return $status
}

# nvcc compiles without a GPU; the tests on a GPU skip themselves where there is none.
cuda_checks() {
    if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
        leave_out "CUDA" "no CUDA Toolkit (nvcc)"
        return
    fi
    stage "build/cuda" build cuda cuda || return 0
    stage "registers and memory of kernels" kernel_resources || true
    if command -v nvidia-smi >/dev/null; then
        stage "tests on the GPU" suite cuda --label-regex '^cuda$' || true
    else
        leave_out "tests on a GPU" "no NVIDIA driver; launch/gpu_check.sh takes them to one"
    fi
}

summary() {
    printf '\n== summary after %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60))
    local line
    for line in "${ran[@]}"; do
        echo "ran       $line"
    done
    for line in "${left_out[@]}"; do
        echo "left out  $line"
    done
    for line in "${failed[@]}"; do
        echo "FAILED    $line"
    done
    echo "$passed_tests passed, $failed_tests failed, $skipped_tests skipped"
    [[ ${#failed[@]} == 0 ]]
}

mkdir -p "$logs"
bash launch/install.sh --tests
if [[ "$(id -u)" == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
if [[ "$label" != simulator ]]; then
    plain_suite
fi
if $fast; then
    leave_out "tests under sanitizers and on the simulated GPU, fuzzers" "--fast"
else
    if [[ "$label" != simulator && "$label" != interop ]]; then
        sanitized_suite asan
        sanitized_suite ubsan
    fi
    if [[ -z "$label" || "$label" == simulator ]]; then
        simulated_suite
    fi
fi
if [[ -z "$label" ]]; then
    source_checks
fi
if ! $fast && [[ -z "$label" || "$label" == fuzz ]]; then
    fuzzers
fi
if $fast || [[ -n "$label" ]]; then
    leave_out "CUDA" "--fast, or one label only"
else
    cuda_checks
fi
summary
