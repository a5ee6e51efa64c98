#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: `pack` where ttrain is built, `run` where the GPU is.
set -euo pipefail

usage() {
    echo "Usage: launch/gpu_check.sh pack [--output FOLDER] [--architectures LIST] [--with-cublas]"
    echo "       FOLDER/gpu_check.sh run"
    echo
    echo "pack  Builds ttrain and its tests for GPUs and gathers them, and the shared libraries that"
    echo "      they need, in FOLDER (default: build/gpu_check), which can be copied to any x86-64"
    echo "      Linux with an NVIDIA driver and a glibc no older than this machine's. LIST: what"
    echo "      CMAKE_CUDA_ARCHITECTURES takes (default: 80-real;90-real). NCCL is left out: the check"
    echo "      runs on one GPU. So is cuBLAS, of some 600 MB: run takes the one of a CUDA Toolkit"
    echo "      or of PyTorch there, unless --with-cublas packs it."
    echo "run   In at most five minutes: operation and model tests on the GPU, a captured step against"
    echo "      an eager one, a short training run, then step times of BERT-large. The last thing"
    echo "      printed is one table; FOLDER/results/ gets it as JSON with all output of every part."
    echo "      Changes no setting of the GPU. Exits with 1 where a test failed."
}

fail() {
    echo "gpu_check: $*" >&2
    exit 1
}

# wrong_usage WORDS: what is wrong with the command.
wrong_usage() {
    echo "gpu_check: $*" >&2
    usage >&2
    exit 2
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
limit_mebibytes=64
run_seconds=290
unit_tests=(test_device test_linear test_tensor_train test_model test_step)

# --- pack ------------------------------------------------------------------------------------------

# The shared libraries of the programs given that a bare system does not have.
needed_libraries() {
    ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -v -E '/(ld-linux|libc|libm|libdl|librt|libpthread)[-.]' |
        grep -v -E '/(libcuda|libnccl)\.'
}

# In place of NCCL, whose calls a run on one GPU does not reach: each says that it is not there.
make_nccl_substitute() {
    local source=$1/nccl.c name
    {
        echo 'const char *ncclGetErrorString(int status);'
        echo 'const char *ncclGetErrorString(int status)'
        echo '{ (void)status; return "NCCL is not in this pack"; }'
        nm -D --undefined-only "${@:2}" | awk '$2 ~ /^nccl/ { print $2 }' | sort -u |
            while read -r name; do
                if [[ $name != ncclGetErrorString ]]; then
                    echo "int $name(void); int $name(void) { return 5; }"
                fi
            done
    } >"$source"
    cc -shared -fPIC -Wl,-soname,libnccl.so.2 -o "$1/lib/libnccl.so.2" "$source"
    rm "$source"
}

pack() {
    local output=build/gpu_check architectures='80-real;90-real' with_cublas=false
    while [[ $# -gt 0 ]]; do
        case $1 in
        --output | --architectures)
            [[ -n ${2:-} ]] || wrong_usage "$1: expected a value, found nothing"
            if [[ $1 == --output ]]; then output=$2; else architectures=$2; fi
            shift 2
            ;;
        --with-cublas) with_cublas=true; shift ;;
        *) wrong_usage "unexpected argument '$1'" ;;
        esac
    done
    cd "$here/.."
    # What stands there is removed, so it must be an earlier pack.
    if [[ -e $output && ! -e $output/pack.tar.xz && -n $(ls -A "$output") ]]; then
        fail "$output: expected no such folder, an empty one or an earlier pack, found other files"
    fi
    local build=build/gpu_check_build tests=("${unit_tests[@]}") test
    for test in tests/ops/test_*.c; do
        tests+=("$(basename "$test" .c)")
    done
    cmake --preset cuda -B "$build" -DTTRAIN_NATIVE=OFF -DCMAKE_CUDA_ARCHITECTURES="$architectures" \
        -DCMAKE_CUDA_FLAGS=-Xfatbin=-compress-all \
        -DCMAKE_EXE_LINKER_FLAGS=-Wl,--enable-new-dtags >/dev/null
    cmake --build "$build" --parallel "$(nproc)" --target ttrain "${tests[@]}"

    local staging
    staging=$(mktemp -d)
    mkdir -p "$staging/bin" "$staging/lib" "$staging/recipes"
    cp "$build/ttrain" "$staging/bin/"
    for test in "${tests[@]}"; do
        cp "$build/tests/$test" "$staging/bin/"
    done
    local library
    for library in $(needed_libraries "$staging"/bin/*); do
        if $with_cublas || [[ $library != */libcublas* ]]; then
            cp -L "$library" "$staging/lib/"
        fi
    done
    make_nccl_substitute "$staging" "$staging"/bin/*
    strip --strip-unneeded "$staging"/bin/* "$staging"/lib/*
    cp recipes/bert_large/two_phases.yaml "$staging/recipes/bert_large.yaml"
    cp recipes/quickstart/recipe.yaml "$staging/recipes/quickstart.yaml"
    cp launch/gpu_check_torch.py "$staging/"

    rm -rf "$output"
    mkdir -p "$output"
    # The programs hold the same kernels, which xz finds within its window and gzip does not.
    tar -C "$staging" --sort=name -cf - . | xz -6 --lzma2=dict=64MiB >"$output/pack.tar.xz"
    rm -rf "$staging"
    cp launch/gpu_check.sh "$(command -v xz)" "$output/"
    for library in $(needed_libraries "$(command -v xz)"); do
        cp -L "$library" "$output/"
    done
    local bytes
    bytes=$(du -sb "$output" | cut -f1)
    echo "$output: $(((bytes + 1048575) / 1048576)) MiB, GPU architectures $architectures"
    if ! $with_cublas && ((bytes > limit_mebibytes * 1048576)); then
        fail "$output: more than $limit_mebibytes MiB"
    fi
}

# --- run -------------------------------------------------------------------------------------------

seconds_left() {
    echo $((run_seconds - SECONDS))
}

# in_time NAME SECONDS COMMAND...: output into the log of that name; 124 where time ran out.
in_time() {
    local name=$1 seconds=$2 left
    shift 2
    left=$(seconds_left)
    ((left > 2)) || return 124
    timeout "$((seconds < left ? seconds : left))" "$@" >"$results/$name.log" 2>&1
}

# A line of the table, and the same as JSON: row KIND NAME RESULT [JSON MEMBERS].
row() {
    rows+=("$(printf '%-12s %-50s %s' "$1" "$2" "$3")")
    json_rows+=("{\"kind\": \"$1\", \"name\": \"$2\", \"result\": \"$3\"${4:+, $4}}")
}

verdict() {
    case $1 in
    0) echo passed ;;
    77) echo skipped ;;
    124) echo "out of time" ;;
    *) echo FAILED ;;
    esac
}

# The first (or second, for the dense twin) number that a JSON report has under this name.
number() {
    awk -v name="\"$2\":" -v which="${3:-1}" \
        '$1 == name { gsub(",", "", $2); if (++seen == which) { print $2; exit } }' "$1"
}

# The folder of a cuBLAS of this major version, where the pack has none.
find_cublas() {
    local folder
    for folder in "$work/lib" "${CUDA_HOME:-/usr/local/cuda}/lib64" /usr/local/cuda*/lib64 \
        $(ldconfig -p 2>/dev/null | awk '/libcublas\.so\.13/ { print $NF }' | xargs -r -n1 dirname) \
        $(python3 -c 'import glob, site, sys
for root in site.getsitepackages() + sys.path:
    print(*glob.glob(root + "/nvidia/*/lib"))' 2>/dev/null); do
        if [[ -e $folder/libcublas.so.13 && -e $folder/libcublasLt.so.13 ]]; then
            echo "$folder"
            return
        fi
    done
    fail "no cuBLAS 13 on this machine (looked in CUDA_HOME, /usr/local/cuda*, ldconfig, Python's" \
        "packages), and none in this pack: pack --with-cublas"
}

run_tests() {
    local program name precision status
    for program in "$work"/bin/test_*; do
        name=$(basename "$program")
        for precision in f32 tf32 bf16; do
            if [[ $name == test_device && $precision != f32 ]]; then
                continue # it computes next to nothing
            fi
            status=0
            TTRAIN_TEST_DEVICE=cuda TTRAIN_TEST_PRECISION=$precision \
                in_time "${name}_$precision" 60 "$program" || status=$?
            row test "$name $precision" "$(verdict "$status")"
            if [[ $status != 0 && $status != 77 ]]; then
                failures=$((failures + 1))
            fi
        done
    done
}

prepare_corpus() {
    local ttrain=$work/bin/ttrain corpus=$work/corpus length
    rm -rf "${corpus:?}"
    mkdir -p "$corpus"
    "$ttrain" prepare synthetic --documents 1000 --output "$corpus/corpus.txt" &&
        "$ttrain" prepare tokenizer --input "$corpus/corpus.txt" --vocab-size 1000 --threads 4 \
            --output "$corpus/tokenizer.model" &&
        for length in 64 128; do
            "$ttrain" prepare text --input "$corpus/corpus.txt" --tokenizer \
                "$corpus/tokenizer.model" --sequence-length $length --validation-fraction 0.05 \
                --output "$corpus/seq$length" || return 1
        done
}

# train NAME SETTING...: the small model, 200 steps.
train() {
    local name=$1 corpus=$work/corpus
    shift
    rm -rf "$work/$name"
    in_time "train_$name" 60 "$work/bin/ttrain" pretrain "$work/recipes/quickstart.yaml" \
        device=cuda output="$work/$name" data.tokenizer="$corpus/tokenizer.model" \
        phases.0.train="$corpus/seq64/train_*.hdf5" \
        phases.0.validation="$corpus/seq64/validation_*.hdf5" \
        phases.1.train="$corpus/seq128/train_*.hdf5" \
        phases.1.validation="$corpus/seq128/validation_*.hdf5" \
        phases.0.steps=180 phases.1.steps=20 log.interval=1 "$@"
}

losses() {
    grep -o '"loss": [^,}]*' "$work/$1/metrics.jsonl"
}

run_training() {
    local precision status
    if ! in_time prepare 60 bash "$here/gpu_check.sh" prepare-corpus; then
        row training "a small corpus" FAILED
        failures=$((failures + 1))
        return
    fi
    for precision in f32 bf16; do
        status=0
        train "graph_$precision" precision=$precision graph=on || status=$?
        train "eager_$precision" precision=$precision graph=off || status=$?
        if [[ $status == 0 ]] && ! cmp -s <(losses "graph_$precision") <(losses "eager_$precision"); then
            status=1
        fi
        row equality "200 steps, graph against eager, $precision" "$(verdict "$status")"
        if [[ $status != 0 ]]; then
            failures=$((failures + 1))
            continue
        fi
        row training "loss over 200 steps, $precision" \
            "$(losses "graph_$precision" | sed -n '1s/.*: //p') to $(losses "graph_$precision" |
                sed -n '$s/.*: //p')"
    done
}

# step_row NAME FILE WHICH: a row from a report of `bench step`.
step_row() {
    local seconds flops peak
    seconds=$(number "$2" median_step_s "$3")
    flops=$(number "$2" flops_per_step "$3")
    peak=$(number "$2" peak_flops_per_s "$3")
    row step "$1" "$(awk -v s="$seconds" -v f="$flops" -v p="$peak" 'BEGIN {
        printf "%8.2f ms  %7.1f TFLOP/s  %5.1f %% of the product peak", 1e3 * s, 1e-12 * f / s,
               100 * f / s / p }')" \
        "\"seconds\": $seconds, \"flops\": $flops, \"peak_flops_per_s\": $peak"
}

# Sizes of BERT-large, and of CodeBERT-large, whose vocabulary is larger; one micro-batch a step.
run_benchmarks() {
    local model phase batch graph name status report
    for model in "BERT-large 30522" "CodeBERT-large 50265"; do
        for phase in 0 1; do
            batch=$((phase == 0 ? 64 : 16))
            for graph in on off; do
                name="${model% *}, $((phase == 0 ? 128 : 512)) tokens, graph $graph"
                report=bench_${model% *}_${phase}_$graph
                status=0
                in_time "$report" 60 "$work/bin/ttrain" bench step "$work/recipes/bert_large.yaml" \
                    --phase "$phase" --batch "$batch" --steps 10 --against dense --json \
                    device=cuda precision=bf16 graph=$graph model.vocabulary_size="${model#* }" \
                    "phases.$phase.micro_batch=$batch" || status=$?
                if [[ $status != 0 ]]; then
                    row step "$name" "$(verdict "$status")"
                    continue
                fi
                step_row "$name, compressed" "$results/$report.log" 1
                step_row "$name, dense" "$results/$report.log" 2
            done
        done
    done
}

run_torch() {
    if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        row step "PyTorch, dense BERT-large" "left out: no PyTorch with CUDA here"
        return
    fi
    local status=0 tokens milliseconds
    in_time torch 60 python3 "$work/gpu_check_torch.py" || status=$?
    if [[ $status != 0 ]]; then
        row step "PyTorch, dense BERT-large" "$(verdict "$status")"
        return
    fi
    while read -r tokens milliseconds; do
        row step "PyTorch, dense BERT-large, $tokens tokens" "$(printf '%8.2f ms' "$milliseconds")"
    done < <(grep -E '^[0-9]+ [0-9.]+$' "$results/torch.log")
}

write_json() {
    local i
    echo "{\"gpu\": \"$gpu\", \"seconds\": $SECONDS, \"failures\": $failures, \"rows\": ["
    for i in "${!json_rows[@]}"; do
        echo "  ${json_rows[$i]}$([[ $i == $((${#json_rows[@]} - 1)) ]] || echo ,)"
    done
    echo "]}"
}

run() {
    [[ -e $here/pack.tar.xz && -x $here/xz ]] ||
        fail "$here: expected a folder that pack made, found no pack.tar.xz and xz in it"
    work=$here/unpacked results=$here/results
    rows=() json_rows=() failures=0
    mkdir -p "$work" "$results"
    LD_LIBRARY_PATH=$here "$here/xz" -dc "$here/pack.tar.xz" | tar -C "$work" -xf -
    local cublas
    cublas=$(find_cublas)
    export LD_LIBRARY_PATH=$work/lib:$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1) ||
        gpu="unknown (no nvidia-smi)"
    echo "$gpu, cuBLAS from $cublas"
    local status=0
    TTRAIN_TEST_DEVICE=cuda in_time start 60 "$work/bin/test_device" || status=$?
    if [[ $status != 0 ]]; then
        tail -n 3 "$results/start.log" >&2
        fail "no test starts on this machine's GPU"
    fi
    run_tests
    run_training
    run_benchmarks
    run_torch
    write_json >"$results/results.json"
    {
        echo "gpu_check on $gpu: $SECONDS s, $failures failed; logs and results.json in $results"
        printf '%s\n' "${rows[@]}"
    } | tee "$results/table.txt"
    [[ $failures == 0 ]]
}

command=${1:-}
shift || true
if [[ $command != pack && $# -gt 0 ]]; then
    wrong_usage "unexpected argument '$1'"
fi
case $command in
pack) pack "$@" ;;
run) run ;;
--help) usage ;;
prepare-corpus) work=$here/unpacked; prepare_corpus ;;
'') wrong_usage "expected pack or run, found nothing" ;;
*) wrong_usage "expected pack or run, found '$command'" ;;
esac
