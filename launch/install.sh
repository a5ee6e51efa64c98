#!/usr/bin/env bash
# Installs what this project needs from Debian's or Ubuntu's packages: only what is missing, and
# only after saying what. With --tests also what launch/test.sh uses.
set -euo pipefail

usage() {
    echo "Usage: launch/install.sh [--tests]"
    echo
    echo "Installs missing packages with apt-get, as root or through sudo."
    echo "  --tests  also the checkers and compilers that launch/test.sh uses"
}

# An entry "a|b" is met by either package; the first is installed.
required=(
    gcc g++ cmake ninja-build "pkg-config|pkgconf" libopenmpi-dev openmpi-bin libhdf5-dev
    libsentencepiece-dev libdnnl-dev libcyaml-dev libcmocka-dev libjansson-dev libxxhash-dev
    libutf8proc-dev libexpat1-dev libbz2-dev zlib1g-dev git
)
# Tests that need one of these are left out, and said to be, where a distribution lacks it.
for_tests=(clang libomp-dev clang-format-14 clang-tidy-14 python3 python3-venv)

installed() {
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

has_any() {
    local name
    for name in ${1//|/ }; do
        if installed "$name"; then
            return 0
        fi
    done
    return 1
}

# Fills `missing` with the entries that no installed package meets.
find_missing() {
    missing=()
    local entry
    for entry in "$@"; do
        has_any "$entry" || missing+=("${entry%%|*}")
    done
}

available() {
    apt-cache show "$1" >/dev/null 2>&1
}

as_root() {
    if [[ "$(id -u)" == 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

update_lists() {
    echo "install: apt-get update"
    as_root apt-get update -qq
}

# clang's runtime for sanitizers and fuzzing is a package of the compiler's version.
clang_runtime() {
    local version
    version=$(apt-cache depends clang 2>/dev/null | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p')
    if [[ -n "$version" ]]; then
        echo "libclang-rt-$version-dev"
    fi
}

# Leaves out of `missing` what this distribution does not have.
keep_available() {
    local kept=() name
    for name in "$@"; do
        if available "$name"; then
            kept+=("$name")
        else
            echo "install: $name is not among this distribution's packages; going on without it"
        fi
    done
    missing=("${kept[@]}")
}

require_apt() {
    if ! command -v apt-get >/dev/null; then
        echo "install: this is neither Debian nor Ubuntu (no apt-get)." >&2
    elif [[ "$(id -u)" != 0 ]] && ! command -v sudo >/dev/null; then
        echo "install: installing needs root or sudo; found neither." >&2
    else
        return 0
    fi
    echo "Please install what these packages of Debian hold, and start again:" >&2
    echo "    $*" >&2
    exit 1
}

install_missing() {
    echo "install: apt-get install ${missing[*]}"
    local command=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq
        --no-install-recommends "${missing[@]}")
    # A list that is out of date names files that are gone.
    as_root "${command[@]}" >/dev/null </dev/null || {
        update_lists
        as_root "${command[@]}" >/dev/null </dev/null
    }
}

tests=false
case "${1:-}" in
"") ;;
--tests) tests=true ;;
--help)
    usage
    exit 0
    ;;
*)
    usage >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    require_apt "${required[@]%%|*}"
fi
find_missing "${required[@]}"
wanted=("${missing[@]}")
optional=()
if $tests; then
    runtime=$(clang_runtime)
    find_missing "${for_tests[@]}" ${runtime:+"$runtime"}
    optional=("${missing[@]}")
fi
if [[ ${#wanted[@]} == 0 && ${#optional[@]} == 0 ]]; then
    echo "install: nothing to do, all packages are there"
    exit 0
fi

require_apt "${wanted[@]}" "${optional[@]}"
for name in "${wanted[@]}" "${optional[@]}"; do
    if ! available "$name"; then
        update_lists
        break
    fi
done
if [[ ${#optional[@]} -gt 0 ]]; then
    runtime=$(clang_runtime)
    find_missing "${for_tests[@]}" ${runtime:+"$runtime"}
    keep_available "${missing[@]}"
    optional=("${missing[@]}")
fi
missing=("${wanted[@]}" "${optional[@]}")
if [[ ${#missing[@]} -gt 0 ]]; then
    install_missing
fi
