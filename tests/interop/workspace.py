"""A corpus, tokenizer, shards and checkpoints that ttrain made, for the tests to read back.

The program is the one that TTRAIN_PROGRAM names, else build/cpu/ttrain.
"""

import atexit
import functools
import glob
import importlib
import json
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("TTRAIN_PROGRAM", os.path.join(ROOT, "build", "cpu", "ttrain"))
SEQUENCE, PREDICTIONS, PIECES = 64, 10, 400

RECIPE = """
name: interop
output: {form}
threads: 2
model:
  preset: small
tensor_train:
  form: {form}
  rank: 8
data:
  tokenizer: tokenizer.model
  train: [static/train_*.hdf5]
  max_predictions: {predictions}
phases:
  - name: only
    sequence_length: {sequence}
    steps: 3
    global_batch: 8
    learning_rate: 1e-3
"""


def optional_module(name):
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def ttrain(*arguments, cwd):
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"ttrain {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def folder():
    """The folder with corpus.txt, tokenizer.model and shards in static/ and dynamic/."""
    holder = tempfile.TemporaryDirectory(prefix="ttrain_interop_")
    atexit.register(holder.cleanup)
    work = holder.name
    ttrain("prepare", "synthetic", "--documents", "200", "--output", "corpus.txt", cwd=work)
    ttrain(
        *["prepare", "tokenizer", "--input", "corpus.txt", "--vocab-size", str(PIECES)],
        *["--output", "tokenizer.model"],
        cwd=work,
    )
    for masking in ("static", "dynamic"):
        ttrain(
            *["prepare", "text", "--input", "corpus.txt", "--tokenizer", "tokenizer.model"],
            *["--masking", masking, "--sequence-length", str(SEQUENCE), "--output", masking],
            *(["--max-predictions", str(PREDICTIONS)] if masking == "static" else []),
            cwd=work,
        )
    return work


def shard(masking):
    return sorted(glob.glob(os.path.join(folder(), masking, "train_*.hdf5")))[0]


@functools.cache
def checkpoint(form):
    """The last checkpoint of a run of three steps, and what `ttrain inspect` says about it."""
    recipe = RECIPE.format(form=form, predictions=PREDICTIONS, sequence=SEQUENCE)
    with open(os.path.join(folder(), f"{form}.yaml"), "w", encoding="utf-8") as output:
        output.write(recipe)
    ttrain("pretrain", f"{form}.yaml", cwd=folder())
    path = sorted(glob.glob(os.path.join(folder(), form, "checkpoints", "step_*")))[-1]
    return path, json.loads(ttrain("inspect", path, "--json", cwd=folder()))
