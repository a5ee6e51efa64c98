"""Times one training step of the six-encoder BERT in PyTorch, dense or tensor-train.

This is the model that `ttrain bench step recipes/six_encoder/pretrain.yaml` is compared with, written
the way a PyTorch user would write it: modules, autograd, stock layers, the stock optimizer. Where
PyTorch offers two ways (fused or plain attention, fused or foreach AdamW) both can be chosen and the
faster one on the CPU is the default. The masked-language-model head exists twice too: over all
positions with the loss ignoring the rest, as Hugging Face's BertForPreTraining does it (--head all, the
default), and over the masked positions alone, gathered first (--head masked), which does far less work.

Prints the median step time after warm-up, tokens/s, peak memory and parameters; --json for programs.
Exit status 1 when the loss on the repeated batch is not finite or does not fall.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, HEADS, INNER = 6, 768, 12, 3072
VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
DROPOUT, EPSILON, THRESHOLD = 0.1, 1e-12, 1e-2
RANK = 30
ATTENTION_SHAPE = [12, 8, 8, 8, 8, 12]
INNER_SHAPE = [12, 8, 8, 12, 16, 16]
OUTER_SHAPE = [16, 16, 12, 8, 8, 12]


class TTLinear(nn.Module):
    """y = x W + bias with W a tensor train: the first half of the cores carries the input modes, the
    second half the output modes, and a diagonal sits on every inner link."""

    def __init__(self, shape, rank):
        super().__init__()
        ranks = [1, shape[0]] + [rank] * (len(shape) - 3) + [shape[-1], 1]
        self.half = len(shape) // 2
        inputs = torch.Size(shape[: self.half]).numel()
        outputs = torch.Size(shape[self.half :]).numel()
        # Entries of the assembled matrix get standard deviation (1 / (inputs + outputs)) ** 0.5.
        entry = (1 / (inputs + outputs)) ** (0.5 / len(shape))
        self.cores = nn.ParameterList(
            torch.randn(left, mode, right) * entry / right**0.5
            for left, mode, right in zip(ranks, shape, ranks[1:])
        )
        self.diagonals = nn.ParameterList(torch.ones(rank) for rank in ranks[1:-1])
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        kept = [torch.where(d > THRESHOLD, d, torch.zeros_like(d)) for d in self.diagonals]
        scaled = [core * diagonal for core, diagonal in zip(self.cores, kept)] + [self.cores[-1]]
        left = scaled[0].flatten(0, 1)
        for core in scaled[1 : self.half]:
            left = (left @ core.flatten(1)).view(-1, core.shape[2])
        right = scaled[-1].flatten(1)
        for core in reversed(scaled[self.half : -1]):
            right = (core.flatten(0, 1) @ right).view(core.shape[0], -1)
        return F.linear(x @ left, right.T, self.bias)


def linear(form, inputs, outputs, shape):
    return TTLinear(shape, RANK) if form == "tensor_train" else nn.Linear(inputs, outputs)


class SelfAttention(nn.Module):
    def __init__(self, form, fused):
        super().__init__()
        self.fused = fused
        self.query = linear(form, HIDDEN, HIDDEN, ATTENTION_SHAPE)
        self.key = linear(form, HIDDEN, HIDDEN, ATTENTION_SHAPE)
        self.value = linear(form, HIDDEN, HIDDEN, ATTENTION_SHAPE)
        self.output = linear(form, HIDDEN, HIDDEN, ATTENTION_SHAPE)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, mask):
        batch, sequence, _ = x.shape
        q, k, v = (
            projection(x).view(batch, sequence, HEADS, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        if self.fused:
            context = F.scaled_dot_product_attention(q, k, v, mask, DROPOUT if self.training else 0.0)
        else:
            scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask
            context = self.dropout(scores.softmax(-1)) @ v
        return self.output(context.transpose(1, 2).reshape(batch, sequence, HIDDEN))


class EncoderBlock(nn.Module):
    """Post-norm: LayerNorm(x + dropout(sublayer(x))), for attention and for the feed-forward map."""

    def __init__(self, form, fused):
        super().__init__()
        self.attention = SelfAttention(form, fused)
        self.attention_norm = nn.LayerNorm(HIDDEN, EPSILON)
        self.inner = linear(form, HIDDEN, INNER, INNER_SHAPE)
        self.outer = linear(form, INNER, HIDDEN, OUTER_SHAPE)
        self.output_norm = nn.LayerNorm(HIDDEN, EPSILON)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, mask):
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.output_norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class BertForPreTraining(nn.Module):
    def __init__(self, form, fused, head):
        super().__init__()
        self.head = head
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(POSITIONS, HIDDEN)
        self.segments = nn.Embedding(SEGMENTS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, EPSILON)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(EncoderBlock(form, fused) for _ in range(LAYERS))
        self.transform = nn.Linear(HIDDEN, HIDDEN)
        self.transform_norm = nn.LayerNorm(HIDDEN, EPSILON)
        self.decoder_bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.pooler = linear(form, HIDDEN, HIDDEN, ATTENTION_SHAPE)
        self.next_sentence = nn.Linear(HIDDEN, 2)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, batch):
        ids = batch["input_ids"]
        places = torch.arange(ids.shape[1])
        x = self.words(ids) + self.positions(places) + self.segments(batch["segment_ids"])
        x = self.dropout(self.norm(x))
        mask = (1.0 - batch["input_mask"].float())[:, None, None, :] * -1e9
        for block in self.blocks:
            x = block(x, mask)
        pair = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
        labels = batch["labels"]
        if self.head == "masked":
            x = x.gather(1, batch["masked_positions"][:, :, None].expand(-1, -1, HIDDEN))
            labels = labels.gather(1, batch["masked_positions"])
        hidden = self.transform_norm(F.gelu(self.transform(x)))
        words = F.linear(hidden, self.words.weight, self.decoder_bias)
        return F.cross_entropy(
            words.flatten(0, 1), labels.flatten(), ignore_index=-1
        ) + F.cross_entropy(pair, batch["next_sentence_labels"])


def make_batch(rows, sequence, masked):
    """Random sentence pairs: the work of a step does not depend on what the tokens say."""
    positions = torch.stack([torch.randperm(sequence)[:masked].sort().values for _ in range(rows)])
    labels = torch.full((rows, sequence), -1)
    labels.scatter_(1, positions, torch.randint(VOCABULARY, (rows, masked)))
    return {
        "input_ids": torch.randint(VOCABULARY, (rows, sequence)),
        "segment_ids": (torch.arange(sequence) >= sequence // 2).long().expand(rows, sequence),
        "input_mask": torch.ones(rows, sequence, dtype=torch.long),
        "masked_positions": positions,
        "labels": labels,
        "next_sentence_labels": torch.randint(2, (rows,)),
    }


def make_optimizer(model, kind, rate):
    """AdamW as BERT uses it: no decay on biases, LayerNorm and rank diagonals."""
    decays, plain = [], []
    for parameter in model.parameters():
        (decays if parameter.dim() > 1 else plain).append(parameter)
    groups = [{"params": decays, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, **{kind: True})


def memory(field):
    """A line of /proc/self/status in bytes: VmHWM is the peak resident size so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024


def measure(options):
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    before = memory("VmHWM")
    model = BertForPreTraining(options.form, options.attention == "fused", options.head)
    optimizer = make_optimizer(model, options.optimizer, options.learning_rate)
    batch = make_batch(options.batch, options.sequence, options.masked)
    seconds, losses = [], []
    for _ in range(options.warmup + options.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[options.warmup :])
    return {
        "program": f"pytorch {torch.__version__}",
        "form": options.form,
        "threads": options.threads,
        "batch": options.batch,
        "sequence": options.sequence,
        "head": options.head,
        "attention": options.attention,
        "optimizer": options.optimizer,
        "steps": options.steps,
        "median_step_s": median,
        "tokens_per_s": options.batch * options.sequence / median,
        "peak_bytes": memory("VmHWM"),
        "bytes_before_model": before,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=["dense", "tensor_train"], default="tensor_train")
    parser.add_argument("--steps", type=int, default=5, help="timed steps (default 5)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those (default 2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--masked", type=int, default=20, help="masked positions a sequence")
    parser.add_argument("--head", choices=["all", "masked"], default="all")
    parser.add_argument("--attention", choices=["fused", "plain"], default="fused")
    parser.add_argument("--optimizer", choices=["fused", "foreach"], default="fused")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    result = measure(options)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")
    falling = result["last_loss"] < result["first_loss"]
    if not falling:
        print("the loss on a repeated batch is not finite or does not fall", file=sys.stderr)
    return 0 if falling else 1


if __name__ == "__main__":
    sys.exit(main())
