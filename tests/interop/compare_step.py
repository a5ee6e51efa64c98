"""Times a training step of the six-encoder model in PyTorch and in ttrain, in turns, in one run.

Each round measures every form (tensor_train, dense) with pytorch_six_encoder.py and with
`ttrain bench step`, each in a process of its own, one after the other. Ratios are taken within a
round, so that what else the machine does meets both sides; the table shows their medians. Both
programs must have the same number of parameters, or the comparison is refused.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OVERRIDES = {"tensor_train": [], "dense": ["tensor_train.form=dense"]}


def run(command, environment=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, check=False)
    if done.returncode != 0:
        sys.exit(f"compare_step: failed with status {done.returncode}: {' '.join(command)}")
    return json.loads(done.stdout)


def run_pytorch(options, form):
    return run(
        [sys.executable, os.path.join(HERE, "pytorch_six_encoder.py"), "--json", "--form", form]
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
            pytorch, ttrain = run_pytorch(options, form), run_ttrain(options, form)
            if pytorch["parameters"] != ttrain["parameters"]:
                sys.exit(
                    f"compare_step: {form}: not the same model: PyTorch has "
                    f"{pytorch['parameters']} parameters, ttrain {ttrain['parameters']}"
                )
            measured[form] = {"pytorch": pytorch, "ttrain": ttrain}
            print(
                f"round {number + 1} of {options.rounds}, {form}: PyTorch "
                f"{pytorch['median_step_s']:.3f} s, ttrain {ttrain['median_step_s']:.3f} s",
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
    summary = {"forms": {}}
    for form in forms:
        pytorch, ttrain = (form, "pytorch"), (form, "ttrain")
        summary["forms"][form] = {
            "pytorch_step_s": median(rounds, lambda m: m[form]["pytorch"]["median_step_s"]),
            "ttrain_step_s": median(rounds, lambda m: m[form]["ttrain"]["median_step_s"]),
            "speedup": ratio(rounds, "median_step_s", pytorch, ttrain),
            "pytorch_peak_bytes": median(rounds, lambda m: m[form]["pytorch"]["peak_bytes"]),
            "ttrain_peak_bytes": median(rounds, lambda m: m[form]["ttrain"]["peak_bytes"]),
            "memory_ratio": ratio(rounds, "peak_bytes", pytorch, ttrain),
            "fraction_of_peak": median(rounds, lambda m: m[form]["ttrain"]["fraction_of_peak"]),
            "parameters": rounds[0][form]["ttrain"]["parameters"],
        }
    if len(forms) == 2:
        for program in ("pytorch", "ttrain"):
            dense, compressed = ("dense", program), ("tensor_train", program)
            summary[f"{program}_compressed_against_dense"] = ratio(
                rounds, "median_step_s", dense, compressed
            )
    return summary


def table(summary):
    lines = [
        "| form | parameters | PyTorch | ttrain | faster | PyTorch memory | ttrain memory | less |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for form, row in summary["forms"].items():
        lines.append(
            f"| {form} | {row['parameters'] / 1e6:.1f} M | {row['pytorch_step_s']:.3f} s"
            f" | {row['ttrain_step_s']:.3f} s | {row['speedup']:.2f}x"
            f" | {row['pytorch_peak_bytes'] / 1e6:.0f} MB | {row['ttrain_peak_bytes'] / 1e6:.0f} MB"
            f" | {row['memory_ratio']:.2f}x |"
        )
    lines.append("")
    for form, row in summary["forms"].items():
        lines.append(f"ttrain {form}: {row['fraction_of_peak']:.2f} of the measured f32 peak")
    for program, name in (("ttrain", "ttrain"), ("pytorch", "PyTorch")):
        key = f"{program}_compressed_against_dense"
        if key in summary:
            lines.append(f"{name}: compressed is {summary[key]:.2f}x faster than dense")
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
