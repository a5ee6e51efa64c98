"""Shards that ttrain wrote, read the way NVIDIA's BERT training script reads its own."""

import unittest

import h5py
import numpy as np

import workspace

NAMES = [
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "next_sentence_labels",
]
PAD, CLS, SEP, MASK = 0, 2, 3, 4


def training_labels(positions, ids, length):
    """What the script trains on: -1 but at the positions before the first zero."""
    labels = np.full(length, -1, dtype=np.int64)
    padding = np.flatnonzero(positions == 0)
    count = padding[0] if len(padding) else len(positions)
    labels[positions[:count]] = ids[:count]
    return labels


class Shards(unittest.TestCase):
    def setUp(self):
        with h5py.File(workspace.shard("static"), "r") as shard:
            self.ids, self.mask, self.segments, self.positions, self.labels, self.next = [
                np.asarray(shard[name][:]).astype(np.int64) for name in NAMES
            ]

    def test_shapes(self):
        rows = len(self.ids)
        self.assertGreater(rows, 100)
        for values in (self.ids, self.mask, self.segments):
            self.assertEqual(values.shape, (rows, workspace.SEQUENCE))
        for values in (self.positions, self.labels):
            self.assertEqual(values.shape, (rows, workspace.PREDICTIONS))
        self.assertEqual(self.next.shape, (rows,))
        self.assertEqual(set(np.unique(self.next)), {0, 1})

    def test_rows_are_pairs(self):
        for ids, mask, segments in zip(self.ids, self.mask, self.segments):
            length = mask.sum()
            self.assertTrue((mask[:length] == 1).all())
            self.assertTrue((ids[length:] == PAD).all())
            self.assertTrue((ids[:length] != PAD).all())
            self.assertEqual(ids[0], CLS)
            ends = np.flatnonzero(ids == SEP)
            self.assertEqual(len(ends), 2)
            self.assertEqual(ends[1], length - 1)
            self.assertTrue((segments[: ends[0] + 1] == 0).all())
            self.assertTrue((segments[ends[0] + 1 : length] == 1).all())

    def test_masked_tokens(self):
        masked = replaced = 0
        for ids, positions, labels in zip(self.ids, self.positions, self.labels):
            targets = training_labels(positions, labels, workspace.SEQUENCE)
            places = np.flatnonzero(targets >= 0)
            self.assertGreaterEqual(len(places), 1)
            self.assertTrue((np.diff(positions[: len(places)]) > 0).all())
            self.assertFalse(np.isin(targets[places], [PAD, CLS, SEP, MASK]).any())
            self.assertTrue((ids[places] != PAD).all())
            self.assertFalse((ids[targets < 0] == MASK).any())
            masked += len(places)
            replaced += (ids[places] == MASK).sum()
        share = masked / self.mask.sum()
        self.assertTrue(0.10 < share < 0.16, share)
        self.assertTrue(0.77 < replaced / masked < 0.83, replaced / masked)


if __name__ == "__main__":
    unittest.main()
