"""What share of tokens is padding, where a DataLoader's batches tell it: their values are real as long as they are on the host."""

import collections

import torch

from . import labels
from .guard import guarded
from .notes import note

# Tokens of the batches, and those that their masks leave out.
_masked = [0, 0]
# Of batches without a mask: how often each id is there, by the shape of the tensor; and the shapes that a model was given.
_ids = collections.defaultdict(collections.Counter)
_given = set()

LEAST_SHARE, MOST_BATCHES = 0.01, 100
_batches = 0


@guarded("the share of padding")
def see(batch):
    """What a DataLoader gives in training."""
    global _batches
    _batches += 1
    named = isinstance(batch, collections.abc.Mapping)
    mask = batch.get("attention_mask") if named else None
    values = batch.values() if named else batch if isinstance(batch, (list, tuple)) else [batch]
    if _batches > MOST_BATCHES:
        return
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.device.type == "cpu":
        _masked[0] += mask.numel()
        _masked[1] += int((mask == 0).sum())
    elif mask is None:
        for ids in values:
            if isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.dtype in (torch.int32, torch.int64) and ids.device.type == "cpu":
                found, counts = ids.unique(return_counts=True)
                _ids[tuple(ids.shape)].update(dict(zip(found.tolist(), counts.tolist())))
                # What comes after them are targets, whose padding is another number.
                break


@guarded("the share of padding")
def given(tensor):
    """What a model is given in training."""
    if not (tensor.is_floating_point() or tensor.is_nested):
        _given.add(tuple(tensor.shape))


@guarded("the share of padding")
def tell():
    modules = [module for root in list(labels._roots) for module in root.modules() if isinstance(module, torch.nn.Embedding)]
    pads = {module.padding_idx for module in modules if module.padding_idx is not None}
    tokens, padding, by = *_masked, "attention_mask"
    if tokens == 0 and len(pads) == 1:
        counted = [_ids[shape] for shape in _given if shape in _ids]
        (pad,) = pads
        tokens, padding = sum(each.total() for each in counted), sum(each[pad] for each in counted)
        by = f"id {pad}, the embedding's padding_idx"
    if padding and padding >= LEAST_SHARE * tokens:
        note(
            note=f"{100 * padding // tokens} % of the tokens in the DataLoader's batches are padding (by {by}): sequences that are packed, or grouped by length, "
            "take less memory and time for as many tokens"
        )
