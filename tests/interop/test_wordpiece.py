"""Hugging Face's tokenizers, with the same WordPiece vocabulary, gives the ids that ttrain put into its
shards. They come with transformers (requirements-torch.txt); without them the test skips itself."""

import glob
import os
import subprocess
import tempfile
import unittest

import h5py

import workspace

try:
    from tokenizers import BertWordPieceTokenizer
except ImportError:
    BertWordPieceTokenizer = None

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = [
    "The caf\u00e9's na\u00efve owner (\u00c5sa) paid $12.50, i.e. 10% more.",
    "\u4e2d\u6587 and \u65e5\u672c stand alone; \u0130stanbul's I has a dot \u2014 \u2018quoted\u2019.",
    "Soft\u00adhyphen, no\u00a0break, zero\u200bwidth, tab\there, \ufb01 ligature, \u00df.",
    "## is text, and so is ##ing. \u0915\u094d\u0937 \u0645\u064e \ud55c\uae00",
    "x" * 100 + " " + "y" * 101 + " unaffable unaffable unaffable",
] * 8


def joined(ids):
    return " " + " ".join(str(piece) for piece in ids) + " "


def pieces():
    """Every letter of the lines, alone and within a word, and some longer ones."""
    found = set("".join(LINES).lower()) | set("cafenaivaosi\u1112\u1161\u11ab")
    letters = sorted(letter for letter in found if not letter.isspace())
    longer = ["the", "cafe", "##ive", "own", "##er", "stand", "una", "##ff", "##able", "mask", "and"]
    return SPECIAL + letters + ["##" + letter for letter in letters] + longer


@unittest.skipUnless(BertWordPieceTokenizer, "tokenizers is not installed")
class WordPiece(unittest.TestCase):
    def test_shards_hold_the_same_ids(self):
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = os.path.join(folder, "vocab.txt")
            with open(vocabulary, "w", encoding="utf-8") as file:
                file.write("\n".join(pieces()) + "\n")
            with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
                file.write("\n\n".join(f"{line}\n{line}" for line in LINES) + "\n")
            subprocess.run(
                [workspace.PROGRAM, "prepare", "text", "--input", "text.txt", "--tokenizer",
                 "vocab.txt", "--sequence-length", "512", "--output", "shards"],
                cwd=folder, check=True, capture_output=True,
            )
            tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
            lines = [tokenizer.encode(line, add_special_tokens=False).ids for line in LINES]
            (path,) = glob.glob(os.path.join(folder, "shards", "train_*.hdf5"))
            with h5py.File(path, "r") as shard:
                rows = shard["input_ids"][:].tolist()
        documents = [joined(line + line) for line in lines]
        seen = set()
        for row in rows:
            first = row.index(3)
            second = row.index(3, first + 1)
            for segment in (row[1:first], row[first + 1 : second]):
                text = joined(segment)
                self.assertTrue(
                    any(text in document for document in documents), tokenizer.decode(segment)
                )
                seen.update(segment)
        self.assertEqual(seen, {piece for line in lines for piece in line})


if __name__ == "__main__":
    unittest.main()
