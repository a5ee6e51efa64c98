"""The SentencePiece Python package, with a tokenizer that ttrain trained, gives the ids that ttrain
put into its shards."""

import os
import unittest

import h5py
import sentencepiece

import workspace

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def joined(ids):
    return " " + " ".join(str(piece) for piece in ids) + " "


class Tokenizer(unittest.TestCase):
    def setUp(self):
        self.tokenizer = sentencepiece.SentencePieceProcessor(
            model_file=os.path.join(workspace.folder(), "tokenizer.model")
        )

    def test_special_pieces(self):
        self.assertEqual(self.tokenizer.get_piece_size(), workspace.PIECES)
        self.assertEqual([self.tokenizer.id_to_piece(i) for i in range(5)], SPECIAL)

    def test_shards_hold_the_same_ids(self):
        with open(os.path.join(workspace.folder(), "corpus.txt"), encoding="utf-8") as corpus:
            blocks = corpus.read().strip().split("\n\n")
        documents = [
            joined(piece for line in block.split("\n") for piece in self.tokenizer.encode(line))
            for block in blocks
        ]
        with h5py.File(workspace.shard("dynamic"), "r") as shard:
            rows = shard["input_ids"][:200]
        _, _, cls, sep, _ = range(5)
        for row in rows.tolist():
            self.assertEqual(row[0], cls)
            first = row.index(sep)
            second = row.index(sep, first + 1)
            for segment in (row[1:first], row[first + 1 : second]):
                text = joined(segment)
                self.assertTrue(
                    any(text in document for document in documents),
                    f"no document holds {self.tokenizer.decode(segment)!r} with these ids",
                )


if __name__ == "__main__":
    unittest.main()
