"""Values and gradients of `chunked-loss` and `fused-linear-loss` against PyTorch's own cross-entropy, on the CPU; prints what was compared."""

import copy
import importlib.util
import itertools
import sys

import torch
import torch.nn.functional as F

spec = importlib.util.spec_from_file_location("losses", sys.argv[1])
losses = importlib.util.module_from_spec(spec)
spec.loader.exec_module(losses)

ROWS, CLASSES, WIDTH = 1300, 301, 24
torch.manual_seed(0)


def close(ours, theirs, tolerance, what):
    error = (ours.float() - theirs.float()).abs().max().item() / theirs.float().abs().max().item()
    assert error <= tolerance, f"{what}: {error}"


def targets(ignore_index):
    made = torch.randint(CLASSES, (ROWS,))
    made[::7] = ignore_index
    return made


for kind, reduction, ignore_index in itertools.product((torch.float32, torch.bfloat16), ("mean", "sum"), (-100, 5)):
    theirs = torch.randn(ROWS, CLASSES).mul(4).to(kind).requires_grad_()
    ours = theirs.detach().clone().requires_grad_()
    classes = targets(ignore_index)
    plain = F.cross_entropy(theirs.float(), classes, ignore_index=ignore_index, reduction=reduction)
    chunked = losses.chunked_cross_entropy(ours, classes, ignore_index, reduction)
    (3 * plain).backward()
    (3 * chunked).backward()
    close(chunked, plain, 1e-6, f"value, {kind}, {reduction}")
    # A gradient in bfloat16 is rounded once.
    close(ours.grad, theirs.grad, 1e-6 if kind == torch.float32 else 4e-3, f"gradient, {kind}, {reduction}")
    # Over several dimensions, of which the second has the classes.
    theirs = torch.randn(2, 50, CLASSES).to(kind).requires_grad_()
    ours, classes = theirs.detach().clone().requires_grad_(), targets(ignore_index)[:100].view(2, 50)
    plain = F.cross_entropy(theirs.float().transpose(1, 2), classes, ignore_index=ignore_index, reduction=reduction)
    chunked = losses.chunked_cross_entropy(ours.transpose(1, 2), classes, ignore_index, reduction)
    plain.backward()
    chunked.backward()
    close(chunked, plain, 1e-6, f"value over several dimensions, {kind}, {reduction}")
    close(ours.grad, theirs.grad, 1e-6 if kind == torch.float32 else 4e-3, f"gradient over several dimensions, {kind}, {reduction}")

for bias, reduction, ignore_index in itertools.product((True, False), ("mean", "sum"), (-100, 5)):
    plain, deferred = (torch.nn.Linear(WIDTH, CLASSES, bias=bias) for _ in range(2))
    deferred.load_state_dict(plain.state_dict())
    losses.defer_logits(deferred)
    classes, results = targets(ignore_index).view(2, -1), []
    hidden = torch.randn(2, ROWS // 2, WIDTH)
    for head in (plain, deferred):
        x = hidden.clone().requires_grad_()
        logits = head(x)[..., :-1, :].contiguous().float()
        assert (type(logits) is losses.DeferredLogits) == (head is deferred)
        shifted = classes[:, 1:].reshape(-1)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), shifted, ignore_index=ignore_index, reduction=reduction)
        (3 * loss).backward()
        results.append([loss, x.grad, *(parameter.grad for parameter in head.parameters())])
    for ours, theirs in zip(results[1], results[0]):
        close(ours, theirs, 1e-5, f"fused, bias {bias}, {reduction}")
    # A copy, as of averaged weights, computes with its own.
    copied = copy.deepcopy(deferred)
    for parameter in copied.parameters():
        parameter.data.zero_()
    assert copied(hidden.clone().requires_grad_()).abs().max() == 0 and plain(hidden).abs().max() > 0
    # What else is asked of the logits finds them.
    x = hidden.clone().requires_grad_()
    assert torch.equal(deferred(x).argmax(-1), plain(x).argmax(-1)) and deferred(x).shape == plain(x).shape
    with torch.no_grad():
        assert type(deferred(x)) is torch.Tensor
    # Probabilities of a word-level model, and a loss that nobody goes back from.
    losses.defer_logits(deferred, always=True)
    given = {"ignore_index": ignore_index, "reduction": reduction}
    for grad, name in itertools.product((True, False), ("log_softmax of flatten", "flatten of log_softmax", "modules", "whole")):
        results = []
        for head in (plain, deferred):
            x = hidden.clone().requires_grad_()
            with torch.set_grad_enabled(grad):
                logits = head(x)
                if name == "modules":
                    loss = torch.nn.NLLLoss(**given)(torch.nn.LogSoftmax(-1)(logits.flatten(end_dim=-2)), classes.flatten())
                elif name == "whole":
                    loss = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), **given)
                else:
                    logits = logits.flatten(0, 1).log_softmax(1) if name.startswith("log") else F.log_softmax(logits, dim=2).flatten(0, -2)
                    loss = F.nll_loss(logits, classes.flatten(), **given)
            assert type(logits) is (losses.DeferredLogits if head is deferred else torch.Tensor)
            results.append([loss, *torch.autograd.grad(loss, [x, *head.parameters()])] if grad else [loss])
        for ours, theirs in zip(results[1], results[0]):
            close(ours, theirs, 1e-5, f"{name}, gradients {grad}, bias {bias}, {reduction}")
    # Logarithms that something else asks for.
    with torch.no_grad():
        close(deferred(hidden).log_softmax(-1).exp().sum(-1), torch.ones(2, ROWS // 2), 1e-5, "probabilities")
print("agree")
