"""Step times of a dense BERT-large in PyTorch, for gpu_check.sh: bf16 autocast, AdamW, masked-language
model head on the masked positions. Prints a line for each sequence length: tokens, milliseconds."""
import statistics
import time

import torch
from torch import nn

VOCABULARY, HIDDEN, LAYERS, HEADS = 30522, 1024, 24, 16


class Bert(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Parameter(torch.zeros(length, HIDDEN))
        layer = nn.TransformerEncoderLayer(
            HIDDEN, HEADS, 4 * HIDDEN, dropout=0.1, activation="gelu", batch_first=True
        )
        self.norm = nn.LayerNorm(HIDDEN)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN))

    def forward(self, ids, places, labels):
        hidden = self.encoder(self.norm(self.word(ids) + self.position))
        masked = self.transform(hidden.flatten(0, 1)[places])
        return nn.functional.cross_entropy(masked @ self.word.weight.t(), labels)


def step_seconds(length, batch, masked, steps=10):
    torch.manual_seed(0)
    model = Bert(length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(VOCABULARY, (batch, length), device="cuda")
    places = torch.randint(batch * length, (batch * masked,), device="cuda")
    labels = torch.randint(VOCABULARY, (batch * masked,), device="cuda")
    times = []
    for i in range(steps + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids, places, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


for length, batch, masked in ((128, 64, 20), (512, 16, 80)):
    print(length, f"{1e3 * step_seconds(length, batch, masked):.3f}", flush=True)
