"""TensorBoard's own reader on event files, of a whole run and of one that was stopped and resumed."""

import glob
import json
import os
import unittest

import numpy as np
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.util import tensor_util

import workspace


def metrics_of(run):
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def numbers_of(record, prefix=""):
    """Pairs of name and value, of nested objects with their names before them."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and f"{prefix}{key}" not in ("step", "timing/unix_time"):
            yield f"{prefix}{key}", value


def event_files(run):
    return glob.glob(os.path.join(run, "*tfevents*"))


class EventFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        workspace.checkpoint("tensor_train")
        cls.run_folder = os.path.join(workspace.folder(), "tensor_train")
        cls.resumed = os.path.join(workspace.folder(), "stopped")
        arguments = ["pretrain", "tensor_train.yaml", "output=stopped", "checkpoint.interval=1"]
        arguments += ["log.interval=1"]
        workspace.ttrain(*arguments, "phases.0.steps=2", cwd=workspace.folder())
        workspace.ttrain(*arguments, "phases.0.steps=5", "--resume", cwd=workspace.folder())

    def check(self, run):
        self.assertEqual(len(event_files(run)), 1, os.listdir(run))
        reader = event_accumulator.EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        self.assertEqual(reader.file_version, 2.0)
        expected = {}
        for record in metrics_of(run):
            for name, value in numbers_of(record):
                expected.setdefault(name, []).append(
                    (record["step"], float(np.float32(value)), record["timing"]["unix_time"])
                )
        self.assertGreater(len(expected), 10)
        self.assertEqual(set(reader.Tags()["tensors"]), set(expected))
        for name, points in expected.items():
            found = [
                (event.step, float(tensor_util.make_ndarray(event.tensor_proto)), event.wall_time)
                for event in reader.Tensors(name)
            ]
            self.assertEqual(found, points, name)

    def test_whole_run(self):
        self.check(self.run_folder)

    def test_resumed_run(self):
        self.assertEqual([record["step"] for record in metrics_of(self.resumed)], [1, 2, 3, 4, 5])
        self.check(self.resumed)

    def test_raw_records_hold_each_step_once(self):
        """The plain loader checks every checksum and merges nothing."""
        (path,) = event_files(self.resumed)
        events = list(event_file_loader.LegacyEventFileLoader(path).Load())
        self.assertEqual(events[0].file_version, "brain.Event:2")
        seen = [(event.step, value.tag) for event in events for value in event.summary.value]
        self.assertEqual(len(seen), len(set(seen)))

    def test_switched_off(self):
        workspace.ttrain(
            *["pretrain", "tensor_train.yaml", "output=silent", "log.tensorboard=off"],
            *["phases.0.steps=1"],
            cwd=workspace.folder(),
        )
        self.assertEqual(event_files(os.path.join(workspace.folder(), "silent")), [])


if __name__ == "__main__":
    unittest.main()
