"""Checkpoints read with the safetensors package; a dense one is Hugging Face's BERT as it stands."""

import os
import unittest

import numpy as np
from safetensors import safe_open

import workspace

torch = workspace.optional_module("torch")
transformers = workspace.optional_module("transformers")


def read(path, name):
    with safe_open(os.path.join(path, name), framework="np") as tensors:
        return {key: tensors.get_tensor(key) for key in tensors.keys()}


class Checkpoint(unittest.TestCase):
    def check_sizes(self, form):
        path, said = workspace.checkpoint(form)
        model = read(path, "model.safetensors")
        self.assertEqual(sum(tensor.size for tensor in model.values()), said["parameters"])
        for name, tensor in model.items():
            self.assertEqual(tensor.dtype, np.float32, name)
            self.assertTrue(np.isfinite(tensor).all(), name)
        return model

    def test_tensor_train(self):
        model = self.check_sizes("tensor_train")
        _, said = workspace.checkpoint("tensor_train")
        self.assertGreater(len(said["layers"]), 0)
        for layer in said["layers"]:
            modes = layer["input_modes"] + layer["output_modes"]
            ranks = layer["ranks"]
            for k, mode in enumerate(modes):
                core = model[f"{layer['name']}.core_{k + 1}"]
                self.assertEqual(core.shape, (ranks[k], mode, ranks[k + 1]))
                if k > 0:
                    diagonal = model[f"{layer['name']}.rank_diagonal_{k}"]
                    self.assertEqual(diagonal.shape, (ranks[k],))

    def test_optimizer(self):
        path, said = workspace.checkpoint("tensor_train")
        moments = read(path, "optimizer.safetensors")
        for tensor in moments.values():
            self.assertTrue(np.isfinite(tensor.astype(np.float64)).all())
        count = sum(tensor.size for tensor in moments.values())
        self.assertGreaterEqual(count, 2 * said["parameters"])

    @unittest.skipUnless(torch and transformers, "needs torch and transformers")
    def test_dense_is_hugging_face_bert(self):
        model = self.check_sizes("dense")
        vocabulary, hidden = model["bert.embeddings.word_embeddings.weight"].shape
        layers = 1 + max(int(key.split(".")[3]) for key in model if ".layer." in key)
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=model["bert.encoder.layer.0.intermediate.dense.bias"].size,
            max_position_embeddings=len(model["bert.embeddings.position_embeddings.weight"]),
        )
        bert = transformers.BertForPreTraining(config)
        weights = {key: torch.from_numpy(tensor) for key, tensor in model.items()}
        missing, unexpected = bert.load_state_dict(weights, strict=False)
        self.assertEqual(unexpected, [])
        self.assertLessEqual(
            set(missing), {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        )


if __name__ == "__main__":
    unittest.main()
