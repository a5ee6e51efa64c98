#!/usr/bin/env bash
# Compiles the CUDA kernels and reads what the compiler says of each: fails where a kernel spills
# registers or keeps an array in local memory, which is device memory.
set -euo pipefail

usage() {
    echo "Usage: launch/check_kernel_resources.sh [FILE...]"
    echo
    echo "Prints registers, shared memory, stack and spills of every kernel of core/cuda/ (or of"
    echo "the FILEs) for each architecture in TTRAIN_CUDA_ARCHITECTURES (default: 80 90), and exits"
    echo "with status 1 where stack or spills are not 0. Needs nvcc, and no GPU; exits with 77"
    echo "where there is no nvcc."
}

if [[ ${1:-} == --help ]]; then
    usage
    exit 0
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
files=("$@")
if [[ $# == 0 ]]; then
    files=("$root"/core/cuda/*.cu)
fi
nvcc=${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
if [[ ! -x $nvcc ]]; then
    echo "no nvcc: looked in PATH, CUDACXX and ${CUDA_HOME:-/usr/local/cuda}/bin" >&2
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One line a kernel: file, architecture, name, registers, shared bytes, stack bytes, spilled bytes.
read_report() {
    awk -v file="$1" -v architecture="$2" '
        /Compiling entry function/ { split($0, part, "'\''"); name = part[2] }
        /bytes stack frame/ { stack = $1; spills = $5 + $9 }
        /Used [0-9]+ registers/ {
            shared = 0
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^smem/) { shared = $(i - 2) }
                if ($i ~ /^registers/) { registers = $(i - 1) }
            }
            if (name != "") {
                printf "%s sm_%s %d %d %d %d %s\n", file, architecture, registers, shared, stack,
                       spills, name
            }
            name = ""
        }'
}

status=0
for file in "${files[@]}"; do
    for architecture in ${TTRAIN_CUDA_ARCHITECTURES:-80 90}; do
        if ! "$nvcc" -std=c++17 -O3 -DNDEBUG -DTTRAIN_CUDA -D_POSIX_C_SOURCE=200809L \
            -D_DEFAULT_SOURCE -I"$root" -arch="sm_$architecture" -cubin -Xptxas=-v \
            -o "$work/out.cubin" "$file" >"$work/log" 2>&1; then
            cat "$work/log" >&2
            echo "$file: does not compile for sm_$architecture" >&2
            exit 1
        fi
        read_report "$(basename "$file")" "$architecture" <"$work/log" >>"$work/kernels"
    done
done
printf '%-20s %-6s %9s %7s %6s %7s  %s\n' file device registers shared stack spilled kernel
c++filt -p <"$work/kernels" | sed "s/void //" | sort |
    while read -r file architecture registers shared stack spills name; do
        printf '%-20s %-6s %9d %7d %6d %7d  %s\n' "$file" "$architecture" "$registers" "$shared" \
            "$stack" "$spills" "$name"
    done
if bad=$(awk '$5 > 0 || $6 > 0' "$work/kernels") && [[ -n $bad ]]; then
    echo "FAILED: $(wc -l <<<"$bad") kernels spill registers or keep arrays in local memory" >&2
    status=1
else
    echo "$(wc -l <"$work/kernels") kernels: no spills, no local memory"
fi
exit $status
