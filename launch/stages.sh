#!/bin/sh
# The paper's experiment with a folder of recipes (dense.yaml, early.yaml, late.yaml): the dense model,
# the early stage, and from its end a late stage for each target ratio; then the table of accuracies,
# sizes and ranks, and the accuracies on the training files. Run again, it goes on where it was.
set -eu

usage() {
    cat <<'USAGE'
Usage: launch/stages.sh FOLDER OUTPUT [KEY=VALUE...]

    launch/stages.sh recipes/entailment runs/entailment

Trains by the FOLDER's dense.yaml, early.yaml and late.yaml, into the folder OUTPUT, and prints the
table of accuracies, sizes and ranks. Run again, it goes on where it was. KEY=VALUE overrides all
recipes. Environment:
    TTRAIN              the program (build/cpu/ttrain)
    RATIOS              target ratios of the late stages ("0.8 0.5 0.2"; "" for none)
    DENSE, EARLY, LATE  further KEY=VALUE, separated by spaces, for one kind of run;
                        DENSE=none leaves the dense model out
    LAUNCH              what to start the program with, such as "mpirun -np 2"
USAGE
}

if [ "${1-}" = --help ]; then
    usage
    exit 0
fi
if [ $# -lt 2 ]; then
    usage >&2
    exit 2
fi

folder=$1
output=$2
shift 2
program=${TTRAIN:-build/cpu/ttrain}
ratios=${RATIOS-0.8 0.5 0.2}
runs=

# train RECIPE NAME EXTRA [KEY=VALUE...]: trains, or goes on with, OUTPUT/NAME.
train() {
    recipe=$folder/$1.yaml name=$2 extra=$3
    shift 3
    # shellcheck disable=SC2086 # EXTRA and LAUNCH are lists of words
    ${LAUNCH-} "$program" finetune "$recipe" --resume "$@" $extra \
        "name=$name" "output=$output/$name" >&2
    # shellcheck disable=SC2086
    accuracy=$(${LAUNCH-} "$program" evaluate "$recipe" --on train --json "$@" $extra \
        "output=$output/$name" 2>/dev/null | sed -n 's/.*"accuracy": \([0-9.]*\).*/\1/p')
    runs="$runs $output/$name"
    accuracies="${accuracies-}$name $accuracy
"
}

if [ "${DENSE-}" != none ]; then
    train dense dense "${DENSE-}" "$@"
fi
train early early "${EARLY-}" "$@"
for ratio in $ratios; do
    train late "late_$ratio" "${LATE-}" "$@" "stages.0.target_ratio=$ratio" \
        "initialize=$output/early/checkpoints"
done

# shellcheck disable=SC2086
"$program" table $runs
printf '\naccuracy on the training files\n%s' "$accuracies" |
    awk 'NF == 2 { printf "  %-12s %.4f\n", $1, $2; next } { print }'
