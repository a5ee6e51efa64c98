"""TensorBoard's own reader on event files, of a whole run and of one that was stopped and resumed."""

import glob
import json
import os
import unittest

import numpy as np
from tensorboard.backend.event_processing import event_accumulator, event_file_loader

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
        reader = event_accumulator.EventAccumulator(run, size_guidance={"scalars": 0})
        reader.Reload()
        self.assertEqual(reader.file_version, 2.0)
        expected, times = {}, {}
        for record in metrics_of(run):
            for name, value in numbers_of(record):
                expected.setdefault(name, []).append((record["step"], float(np.float32(value))))
            if "timing" in record:
                times[record["step"]] = record["timing"]["unix_time"]
        self.assertGreater(len(expected), 10)
        self.assertEqual(set(reader.Tags()["scalars"]), set(expected))
        for name, points in expected.items():
            events = reader.Scalars(name)
            self.assertEqual([(event.step, event.value) for event in events], points, name)
            for event in events if not name.startswith("compaction/") else []:
                self.assertEqual(event.wall_time, times[event.step], name)

    def test_whole_run(self):
        self.check(self.run_folder)

    def test_resumed_run(self):
        steps = [record["step"] for record in metrics_of(self.resumed) if "loss" in record]
        self.assertEqual(steps, [1, 2, 3, 4, 5])
        self.check(self.resumed)

    def test_raw_records_hold_each_step_once(self):
        """The plain loader checks every checksum and merges nothing."""
        (path,) = event_files(self.resumed)
        events = list(event_file_loader.LegacyEventFileLoader(path).Load())
        self.assertEqual(events[0].file_version, "brain.Event:2")
        seen = [(event.step, value.tag) for event in events for value in event.summary.value]
        self.assertEqual(len(seen), len(set(seen)))

    def test_shown_as_scalars(self):
        """The loader behind TensorBoard's pages hands every number to the plug-in for curves."""
        (path,) = event_files(self.run_folder)
        plugins = {}
        for event in event_file_loader.EventFileLoader(path).Load():
            for value in event.summary.value:
                name = value.metadata.plugin_data.plugin_name
                plugins[value.tag] = plugins.get(value.tag) or name
        self.assertEqual(set(plugins.values()), {"scalars"})
        self.assertIn("loss", plugins)

    def test_switched_off(self):
        workspace.ttrain(
            *["pretrain", "tensor_train.yaml", "output=silent", "log.tensorboard=off"],
            *["phases.0.steps=1"],
            cwd=workspace.folder(),
        )
        self.assertEqual(event_files(os.path.join(workspace.folder(), "silent")), [])


if __name__ == "__main__":
    unittest.main()
