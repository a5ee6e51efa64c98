"""The project's own reference files, made by its double-precision models, against PyTorch in double
precision: Hugging Face's BERT, and the six-encoder classifier by automatic differentiation."""

import glob
import os
import unittest

import h5py
import numpy as np

import workspace

torch = workspace.optional_module("torch")
transformers = workspace.optional_module("transformers")
if not torch or not transformers:
    raise unittest.SkipTest("needs torch and transformers")
F = torch.nn.functional

DATA = os.path.join(workspace.ROOT, "tests", "reference", "data")


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


class SixEncoder:
    """The classifier of the six-encoder files, in double precision."""

    def __init__(self, file):
        self.sizes = file.attrs
        self.values = {}
        file["parameters"].visititems(self.add)

    def add(self, name, item):
        if isinstance(item, h5py.Dataset):
            self.values[name] = torch.from_numpy(item[:]).double().requires_grad_()

    def cores(self, name):
        """Every core times the diagonal behind it, entries at or below the threshold being zero."""
        cores = []
        while (key := f"{name}/tensor/factors/{len(cores)}") in self.values:
            core = self.values[key]
            diagonal = self.values.get(f"{name}/tensor/rank_parameters/{len(cores)}")
            if diagonal is not None:
                kept = diagonal > self.sizes["threshold"]
                core = core * torch.where(kept, diagonal, torch.zeros_like(diagonal))
            cores.append(core)
        return cores

    def linear(self, name, x):
        cores = self.cores(f"{name}/layer")
        weight = cores[0]
        for core in cores[1:]:
            weight = torch.tensordot(weight, core, 1)
        return x @ weight.reshape(x.shape[-1], -1) + self.values[f"{name}/layer/bias"]

    def norm(self, name, x):
        weight, bias = self.values[f"{name}/weight"], self.values[f"{name}/bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, float(self.sizes["layer_norm_eps"]))

    def words(self, ids):
        """Rows of the table that the embedding's cores make: its row modes lead, then its columns."""
        cores = self.cores("encoder/embedding/word_emb")
        table = cores[0]
        for core in cores[1:]:
            table = torch.tensordot(table, core, 1)
        table = table[0, ..., 0]
        order = [*range(0, 2 * len(cores), 2), *range(1, 2 * len(cores), 2)]
        return table.permute(order).reshape(-1, int(self.sizes["hidden"]))[ids]

    def attention(self, name, x, mask):
        batch, sequence, hidden = x.shape
        q, k, v = (
            self.linear(f"{name}/{part}", x)
            .view(batch, sequence, int(self.sizes["heads"]), -1)
            .transpose(1, 2)
            for part in ("w_qs", "w_ks", "w_vs")
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, sequence, hidden)
        return self.linear(f"{name}/fc", context)

    def logits(self, ids, segments, mask):
        positions = self.values["encoder/embedding/position_emb/weight"][: ids.shape[1]]
        x = self.words(ids) + positions
        x = x + self.values["encoder/embedding/token_type_emb/weight"][segments]
        x = self.norm("encoder/embedding/layer_norm", x)
        for block in range(int(self.sizes["n_layers"])):
            name = f"encoder/encoder_blocks/{block}"
            attended = self.attention(f"{name}/slf_attn", x, mask)
            x = self.norm(f"{name}/slf_attn/layer_norm", x + attended)
            inner = F.gelu(self.linear(f"{name}/pos_ffn/fc_1", x))
            outer = self.linear(f"{name}/pos_ffn/fc_2", inner)
            x = self.norm(f"{name}/pos_ffn/layer_norm", x + outer)
        pooled = torch.tanh(self.linear("classifier/fc1", x[:, 0]))
        weight, bias = (self.values[f"classifier/fc2/layer/{part}"] for part in ("weight", "bias"))
        return F.linear(pooled, weight, bias)


class OwnReference(unittest.TestCase):
    def test_bert(self):
        with h5py.File(os.path.join(DATA, "bert_pretraining_own.h5"), "r") as file:
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
            self.check_gradients(dict(model.named_parameters()), file["gradients"])

    def test_six_encoder(self):
        paths = sorted(glob.glob(os.path.join(DATA, "six_encoder_own_*.h5")))
        self.assertEqual(len(paths), 2)
        for path in paths:
            with self.subTest(path), h5py.File(path, "r") as file:
                model, batch = SixEncoder(file), file["batch"]
                names = ("input_ids", "segment_ids", "attention_mask", "labels")
                *inputs, labels = (torch.from_numpy(batch[name][:]).long() for name in names)
                logits = model.logits(*inputs)
                loss = F.cross_entropy(logits, labels)
                loss.backward()
                self.assert_close(logits.detach().numpy(), file["logits"][:])
                self.assertAlmostEqual(loss.item(), file["loss"][()], delta=1e-10)
                self.check_gradients(model.values, file["gradients"])

    def assert_close(self, found, expected):
        difference = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        self.assertLess(difference, 1e-10)

    def check_gradients(self, parameters, group):
        """The file keeps gradients as floats."""
        expected = {}
        group.visititems(
            lambda name, item: expected.update({name: item[:].astype(np.float64)})
            if isinstance(item, h5py.Dataset)
            else None
        )
        whole = np.sqrt(sum((gradient**2).sum() for gradient in expected.values()))
        for name, gradient in expected.items():
            found = parameters[name].grad.numpy()
            scale = max(np.linalg.norm(gradient), 1e-6 * whole)
            self.assertLess(np.linalg.norm(found - gradient) / scale, 2e-7, name)


if __name__ == "__main__":
    unittest.main()
