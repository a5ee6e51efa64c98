"""The project's own reference file of BERT, made by its double-precision model, against Hugging
Face's BERT in double precision: losses, logits and every gradient."""

import os
import unittest

import h5py
import numpy as np
import torch
import transformers

import workspace

FILE = os.path.join(workspace.ROOT, "tests", "reference", "data", "bert_pretraining_own.h5")


def hugging_face_bert(file):
    sizes = file.attrs
    config = transformers.BertConfig(
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=float(sizes["layer_norm_eps"]),
        attn_implementation="eager",
        **{
            name: int(sizes[name])
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "max_position_embeddings",
                "type_vocab_size",
            )
        },
    )
    model = transformers.BertForPreTraining(config).double().eval()
    weights = {name: torch.from_numpy(file["parameters"][name][:]) for name in file["parameters"]}
    _, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def labels_of(batch):
    """-100, which Hugging Face ignores, but at the masked positions."""
    labels = np.full(batch["input_ids"].shape, -100)
    positions, ids = batch["masked_lm_positions"][:], batch["masked_lm_ids"][:]
    for row, position, label in zip(labels, positions, ids):
        count = np.flatnonzero(position == 0)[0] if (position == 0).any() else len(position)
        row[position[:count]] = label[:count]
    return torch.from_numpy(labels)


class OwnReference(unittest.TestCase):
    def test_bert(self):
        with h5py.File(FILE, "r") as file:
            model = hugging_face_bert(file)
            batch = file["batch"]
            labels = labels_of(batch)
            output = model(
                input_ids=torch.from_numpy(batch["input_ids"][:]).long(),
                attention_mask=torch.from_numpy(batch["input_mask"][:]).long(),
                token_type_ids=torch.from_numpy(batch["segment_ids"][:]).long(),
                labels=labels,
                next_sentence_label=torch.from_numpy(batch["next_sentence_labels"][:]).long(),
            )
            output.loss.backward()
            logits = output.prediction_logits[labels >= 0].detach().numpy()
            self.assert_close(logits, file["masked_lm_logits"][:])
            pair = output.seq_relationship_logits.detach().numpy()
            self.assert_close(pair, file["seq_relationship_logits"][:])
            self.assertAlmostEqual(output.loss.item(), file["loss"][()], delta=1e-10)
            self.check_gradients(model, file["gradients"])

    def assert_close(self, found, expected):
        difference = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        self.assertLess(difference, 1e-10)

    def check_gradients(self, model, expected):
        """The file keeps gradients as floats."""
        whole = np.sqrt(sum((expected[name][:].astype(np.float64) ** 2).sum() for name in expected))
        parameters = dict(model.named_parameters())
        for name in expected:
            gradient = expected[name][:].astype(np.float64)
            found = parameters[name].grad.numpy()
            scale = max(np.linalg.norm(gradient), 1e-6 * whole)
            self.assertLess(np.linalg.norm(found - gradient) / scale, 2e-7, name)


if __name__ == "__main__":
    unittest.main()
