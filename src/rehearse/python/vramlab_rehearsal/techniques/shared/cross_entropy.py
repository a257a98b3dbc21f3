"""Cross-entropy as a script calls it."""

import functools
import inspect

from ...guard import instead

LARGE_LOGITS = 64 << 20


def replace_cross_entropy(torch, replaced):
    """Has `replaced` called for each cross-entropy with its arguments by name and with the plain call; gives what puts that back."""
    functional = torch.nn.functional
    original = functional.cross_entropy
    signature = inspect.signature(original)

    @instead("cross_entropy", functional)
    def cross_entropy(*arguments, **more):
        given = signature.bind(*arguments, **more)
        given.apply_defaults()
        return replaced(given.arguments, functools.partial(original, *arguments, **more))

    return lambda *_: setattr(functional, "cross_entropy", original)


def without_module(*parts):
    """The source of functions of losses.py, as it is pasted into a script."""
    sources = [inspect.getsource(part).strip() for part in parts]
    return "import torch\nimport torch.nn.functional as F\n\n\n" + "\n\n\n".join(sources)
