"""Cross-entropy over a large vocabulary without tensors of all logits in fp32: what `chunked-loss` and `fused-linear-loss` switch on.

Each function is written so that its source can be pasted into a script: it needs `torch` and `torch.nn.functional as F`, and nothing of this
package.
"""

import torch
import torch.nn.functional as F


class ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy of logits [rows, classes] and targets [rows], `chunk` rows at a time; only the logits are kept for the backward pass."""

    @staticmethod
    def forward(context, logits, targets, ignore_index, reduction, chunk):
        loss = torch.zeros((), device=logits.device)
        for rows, classes in zip(logits.split(chunk), targets.split(chunk)):
            loss += F.cross_entropy(rows.float(), classes, ignore_index=ignore_index, reduction="sum")
        kept = targets != ignore_index
        count = kept.sum() if reduction == "mean" else torch.ones((), device=logits.device)
        context.save_for_backward(logits, targets, kept / count)
        context.chunk = chunk
        return loss / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        logits, targets, weights = context.saved_tensors
        result, chunk = torch.empty_like(logits), context.chunk
        for rows, classes, weight, into in zip(*(tensor.split(chunk) for tensor in (logits, targets, weights, result))):
            probabilities = rows.softmax(-1, dtype=torch.float32)
            probabilities[torch.arange(len(rows), device=rows.device), classes.clamp(min=0)] -= 1
            into.copy_(probabilities.mul_((weight * gradient)[:, None]))
        return result, None, None, None, None


def chunked_cross_entropy(logits, targets, ignore_index=-100, reduction="mean", chunk=512):
    """As F.cross_entropy: logits [rows, classes, ...], targets [rows, ...]."""
    rows = logits.movedim(1, -1).flatten(0, -2)
    return ChunkedCrossEntropy.apply(rows, targets.flatten(), ignore_index, reduction, chunk)


class LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy of `F.linear(hidden, weight, bias)` with targets, `chunk` rows at a time: the logits are never there as a whole.

    hidden [rows, width], weight [classes, width], targets [rows]. The gradients, where they are wanted, are computed beside the loss and kept
    instead of the logits.
    """

    @staticmethod
    def forward(context, hidden, weight, bias, targets, ignore_index, reduction, chunk, trains=True):
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else hidden.dtype
        kept = targets != ignore_index
        count = kept.sum() if reduction == "mean" else torch.ones((), device=hidden.device)
        loss = torch.zeros((), device=hidden.device)
        if trains:
            to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight)
            to_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast("cuda", enabled=False):
            matrix, shift = weight.to(kind), None if bias is None else bias.to(kind)
            for at in range(0, len(hidden), chunk):
                rows, classes, keep = hidden[at : at + chunk].to(kind), targets[at : at + chunk], kept[at : at + chunk]
                logits = F.linear(rows, matrix, shift).float()
                loss += F.cross_entropy(logits, classes, ignore_index=ignore_index, reduction="sum")
                if not trains:
                    continue
                logits = logits.softmax(-1)
                logits[torch.arange(len(rows), device=rows.device), classes.clamp(min=0)] -= 1
                logits = logits.mul_((keep / count)[:, None]).to(kind)
                to_hidden[at : at + chunk] = logits @ matrix
                to_weight += logits.T @ rows
                if bias is not None:
                    to_bias += logits.sum(0)
        if trains:
            context.save_for_backward(to_hidden, to_weight, to_bias)
        return loss / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        return *(tensor if tensor is None else tensor.mul_(gradient) for tensor in context.saved_tensors), None, None, None, None, None


class DeferredLogits(torch.Tensor):
    """What a linear layer would give, or its log_softmax: the loss takes it chunk by chunk, whatever else asks for the logits has them computed."""

    chunk = 512
    same = (torch.Tensor.float, torch.Tensor.contiguous, torch.Tensor.to)

    @staticmethod
    def __new__(cls, hidden, weight, bias=None, logged=False):
        shape = (*hidden.shape[:-1], weight.shape[0])
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=hidden.dtype, device=hidden.device)
        made.parts, made.logged = (hidden, weight, bias), logged
        return made

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), more=None):
        more = more or {}
        self = arguments[0] if arguments and isinstance(arguments[0], cls) else None
        name = getattr(function, "__name__", "")
        if name in ("__get__", "size", "dim", "numel", "stride", "is_floating_point", "element_size", "__len__", "get_device"):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **more)
        if self is not None:
            (hidden, weight, bias), given = self.parts, more.copy()
            if function in cls.same:
                return self
            if name in ("view", "reshape"):
                shape = arguments[1] if isinstance(arguments[1], (tuple, list, torch.Size)) else arguments[1:]
                if shape[-1] == self.shape[-1]:
                    return cls(hidden.reshape(*shape[:-1], hidden.shape[-1]), weight, bias, self.logged)
            if name == "flatten":
                given |= zip(("start_dim", "end_dim"), arguments[1:])
                if given.get("end_dim", -1) % self.dim() < self.dim() - 1:
                    return cls(hidden.flatten(**given), weight, bias, self.logged)
            if name == "__getitem__":
                index = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
                of_rows = len(index) < self.dim() and Ellipsis not in index
                if of_rows or (index[-1] == slice(None) and len(index) <= self.dim()):
                    return cls(hidden[index], weight, bias, self.logged)
            if name == "log_softmax" and (more.get("dim") if len(arguments) < 2 else arguments[1]) in (-1, self.dim() - 1):
                return cls(hidden, weight, bias, True)
            if self.dim() == 2 and name == ("nll_loss" if self.logged else "cross_entropy"):
                given |= zip(("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"), arguments)
                targets, reduction = given["target"], given.get("reduction", "mean")
                plain = given.get("weight") is None and not given.get("label_smoothing") and targets.dim() == 1
                if plain and reduction in ("mean", "sum"):
                    given = given.get("ignore_index", -100), reduction, cls.chunk, torch.is_grad_enabled()
                    return LinearCrossEntropy.apply(hidden, weight, bias, targets, *given)
        return cls.__torch_dispatch__(function, types, arguments, more)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), more=None):
        def whole(value):
            if isinstance(value, cls):
                logits = F.linear(*value.parts)
                return logits.log_softmax(-1) if value.logged else logits
            return type(value)(map(whole, value)) if type(value) in (tuple, list) else value

        return function(*map(whole, arguments), **{name: whole(value) for name, value in (more or {}).items()})


def defer_logits(head, always=False):
    """Has a linear layer put off its product while gradients are wanted, or always."""
    plain = type(head).forward

    def forward(self, x):
        return DeferredLogits(x, self.weight, self.bias) if always or torch.is_grad_enabled() else plain(self, x)

    # Bound to the layer, so that a copy of the model has its own.
    head.forward = forward.__get__(head)
