"""Times a training step of the six-encoder model in PyTorch and in ttrain, in turns, in one run.

Each round measures every form (tensor_train, dense) with pytorch_six_encoder.py and with
`ttrain bench step`, each in a process of its own, one after the other. Ratios are taken within a
round, so that what else the machine does meets both sides; the table shows their medians. Both
programs must have the same number of parameters, or the comparison is refused. PyTorch is measured with
both heads (see pytorch_six_encoder.py): over all positions, and over the masked ones alone as in ttrain.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HEADS = ["all", "masked"]
OVERRIDES = {"tensor_train": [], "dense": ["tensor_train.form=dense"]}


def run(command, environment=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"compare_step: failed with status {done.returncode}: {' '.join(command)}")
    return json.loads(done.stdout)


def run_pytorch(options, form, head):
    return run(
        [sys.executable, os.path.join(HERE, "pytorch_six_encoder.py"), "--json", "--form", form]
        + ["--head", head]
        + ["--steps", str(options.steps), "--threads", str(options.threads)]
        + ["--batch", str(options.batch), "--sequence", str(options.sequence)]
    )


def run_ttrain(options, form):
    sizes = ["--batch", str(options.batch), "--sequence-length", str(options.sequence)]
    return run(
        [options.ttrain, "bench", "step", options.recipe, *OVERRIDES[form], "--json"]
        + ["--steps", str(options.steps), "--threads", str(options.threads), *sizes],
        dict(os.environ, OMP_NUM_THREADS=str(options.threads)),
    )


def measure(options):
    rounds = []
    for number in range(options.rounds):
        measured = {}
        for form in options.forms:
            ttrain = run_ttrain(options, form)
            measured[form] = {"ttrain": ttrain}
            for head in HEADS:
                pytorch = run_pytorch(options, form, head)
                if pytorch["parameters"] != ttrain["parameters"]:
                    sys.exit(
                        f"compare_step: {form}: not the same model: PyTorch has "
                        f"{pytorch['parameters']} parameters, ttrain {ttrain['parameters']}"
                    )
                measured[form][head] = pytorch
                print(
                    f"round {number + 1} of {options.rounds}, {form}, head over {head} positions: "
                    f"PyTorch {pytorch['median_step_s']:.3f} s, ttrain {ttrain['median_step_s']:.3f} s",
                    file=sys.stderr,
                )
        rounds.append(measured)
    return rounds


def median(rounds, value):
    return statistics.median(value(measured) for measured in rounds)


def ratio(rounds, field, above, below):
    """Median over rounds of one measurement's field over another's; each is (form, program)."""
    return median(rounds, lambda m: m[above[0]][above[1]][field] / m[below[0]][below[1]][field])


def summarise(rounds, forms):
    summary = {"rows": [], "fraction_of_peak": {}, "compressed_against_dense": {}}
    for form in forms:
        for head in HEADS:
            pytorch, ttrain = (form, head), (form, "ttrain")
            row = {"form": form, "head": head, "parameters": rounds[0][form]["ttrain"]["parameters"]}
            for name, key in (("pytorch", head), ("ttrain", "ttrain")):
                for field in ("median_step_s", "peak_bytes"):
                    row[f"{name}_{field}"] = median(rounds, lambda m: m[form][key][field])
            row["speedup"] = ratio(rounds, "median_step_s", pytorch, ttrain)
            row["memory_ratio"] = ratio(rounds, "peak_bytes", pytorch, ttrain)
            summary["rows"].append(row)
        summary["fraction_of_peak"][form] = median(
            rounds, lambda m: m[form]["ttrain"]["fraction_of_peak"]
        )
    if len(forms) == 2:
        for program in ["ttrain", *HEADS]:
            summary["compressed_against_dense"][program] = ratio(
                rounds, "median_step_s", ("dense", program), ("tensor_train", program)
            )
    return summary


def table(summary):
    lines = [
        "| form | parameters | PyTorch's head over | PyTorch | ttrain | faster | PyTorch memory"
        " | ttrain memory | less |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in summary["rows"]:
        lines.append(
            f"| {row['form']} | {row['parameters'] / 1e6:.1f} M | {row['head']} positions"
            f" | {row['pytorch_median_step_s']:.3f} s | {row['ttrain_median_step_s']:.3f} s"
            f" | {row['speedup']:.2f}x | {row['pytorch_peak_bytes'] / 1e6:.0f} MB"
            f" | {row['ttrain_peak_bytes'] / 1e6:.0f} MB | {row['memory_ratio']:.2f}x |"
        )
    lines.append("")
    for form, fraction in summary["fraction_of_peak"].items():
        lines.append(f"ttrain {form}: {fraction:.2f} of the measured f32 peak")
    names = {"ttrain": "ttrain", "all": "PyTorch, all positions", "masked": "PyTorch, masked positions"}
    for program, value in summary["compressed_against_dense"].items():
        lines.append(f"{names[program]}: compressed is {value:.2f}x faster than dense")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ttrain", default=os.path.join(ROOT, "build", "cpu", "ttrain"))
    parser.add_argument("--recipe", default="recipes/six_encoder/pretrain.yaml")
    parser.add_argument("--forms", nargs="+", choices=list(OVERRIDES), default=list(OVERRIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed steps a process (default 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--output", metavar="FILE", help="write all measurements there as JSON")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    rounds = measure(options)
    summary = summarise(rounds, options.forms)
    print(table(summary))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as output:
            json.dump({"summary": summary, "rounds": rounds}, output, indent=2)
            output.write("\n")


if __name__ == "__main__":
    main()
