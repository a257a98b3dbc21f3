"""Sequences of many lengths, padded, grouped by length or packed, in plain PyTorch, for experiments/packing."""

import contextlib
import math
import unittest.mock

import lab
import presets
import torch
import torch.nn.functional as F

MODELS = {
    "llama-12x768": lambda: presets.train.Llama(12, 768, 12, 12, 2048, vocabulary=32000),
    "llama-2x64": lambda: presets.train.Llama(2, 64, 4, 2, 128, vocabulary=512),
}
# Sequences of an epoch, of a padded step, and tokens of a packed row: the longest sequence is a whole row.
SEQUENCES, OF_A_STEP = 64, 8
ROW = {"llama-12x768": 2048, "llama-2x64": 64}
IGNORED = -100


def lengths(kind, longest):
    """Tokens of each sequence. Log-normal ones have a median of about a ninth of the longest."""
    if kind == "alike":
        return [longest // 8] * SEQUENCES
    drawn = torch.empty(SEQUENCES, device="cpu").log_normal_(math.log(longest / 9), 0.9)
    return drawn.round().clamp(4, longest).int().tolist()


def rows(sequences, longest):
    """First fit: each sequence goes to the first row that has room."""
    found = []
    for sequence in sequences:
        row = next((row for row in found if sum(map(len, row)) + len(sequence) <= longest), None)
        if row is None:
            found.append(row := [])
        row.append(sequence)
    return found


class Padded:
    """A step of sequences that are as long as the longest of them. What follows a sequence's end is never attended to, and has no loss."""

    def __init__(self, sequences):
        self.tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        # Each token is its own target, so that where a sequence ends changes nothing.
        self.targets = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=IGNORED)
        self.mask = None


class Packed:
    """A row of sequences, each of which attends to itself alone. Rotary positions are relative, so they need not begin again."""

    def __init__(self, sequences):
        self.tokens = self.targets = torch.cat(sequences)[None]
        number = torch.cat([torch.full_like(sequence, i) for i, sequence in enumerate(sequences)])
        self.mask = (number[:, None] == number).tril_()


def steps(sequences, arranged, longest):
    if arranged == "packed":
        return [Packed(row) for row in rows(sequences, longest)]
    ordered = sorted(sequences, key=len) if arranged == "grouped" else sequences
    return [Padded(ordered[i : i + OF_A_STEP]) for i in range(0, len(ordered), OF_A_STEP)]


@contextlib.contextmanager
def attending_by(mask):
    if mask is None:
        yield
        return
    attend = F.scaled_dot_product_attention
    by_mask = lambda q, k, v, is_causal: attend(q, k, v, attn_mask=mask)
    with unittest.mock.patch.object(F, "scaled_dot_product_attention", by_mask):
        yield


class Training:
    """An epoch, whose gradients are those of the mean over all tokens."""

    def __init__(self, cell, bench):
        name = cell["model"]
        with torch.device(bench.device):
            self.model = MODELS[name]()
            vocabulary = self.model.tokens.num_embeddings
            sequences = [torch.randint(vocabulary, (length,)) for length in lengths(cell["lengths"], ROW[name])]
        self.steps = steps(sequences, cell["arranged"], ROW[name])
        self.useful = sum(map(len, sequences))

    def run(self, probe):
        self.model.zero_grad()
        rest = probe.at_rest()
        for step in self.steps:
            with attending_by(step.mask):
                logits = self.model(step.tokens)
            loss = F.cross_entropy(logits, step.targets.reshape(-1), ignore_index=IGNORED, reduction="sum") / self.useful
            del logits
            loss.backward()
        tokens = sum(step.tokens.numel() for step in self.steps)
        of_a_step = self.useful / len(self.steps)
        probe.figure("padding", "1", 1 - self.useful / tokens)
        probe.figure("useful", "1", of_a_step)
        probe.figure("per_token", "B", (probe.peak() - rest) / of_a_step)

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


if __name__ == "__main__":
    lab.main(Training)
