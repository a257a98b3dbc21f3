"""The repeated blocks of a model, and how a script writes them."""

import re


def repeated(root):
    """The lists of repeated blocks of a model, the outermost ones: path, list, and the blocks in it."""
    from torch import nn

    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

    # A list may have None in it, which is no child.
    def kinds(children):
        found = {}
        for child in children:
            if not isinstance(child, containers) and any(True for _ in child.children()):
                found.setdefault(type(child), []).append(child)
        return found

    def within(path, module):
        is_list = isinstance(module, (nn.Sequential, nn.ModuleList))
        if is_list:
            blocks = max(kinds(module.children()).values(), key=len, default=[])
            if len(blocks) > 1:
                return [(path, module, blocks)]
        deeper = [entry for name, child in module.named_children() for entry in within(f"{path}.{name}" if path else name, child)]
        if is_list and not deeper:
            # Blocks that are written as sequences of layers.
            blocks = [child for child in module.children() if isinstance(child, nn.Sequential) and len(child) > 1]
            if len(blocks) > 1:
                return [(path, module, blocks)]
            # Rows of a table, as of attention and feed-forward: [ModuleList([attention, feed_forward]), ...].
            of_rows = [child for row in module.children() if isinstance(row, nn.ModuleList) for child in row.children()]
            most = {kind for kind, of_kind in kinds(of_rows).items() if len(of_kind) > 1}
            if most:
                return [(path, module, [child for child in of_rows if type(child) in most])]
        return deeper

    return within("", root)


def in_script(path):
    """A module's path as a script writes it: model.layers[0].blocks."""
    return "model" + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f".{path}") if path else "model"


def of_list(path, module, blocks):
    """The blocks of a list as a script writes them."""
    if list(module) == blocks:
        return in_script(path)
    if blocks[0] not in list(module):
        kinds = tuple(dict.fromkeys(type(block).__name__ for block in blocks))
        return f"[block for row in {in_script(path)} for block in row if type(block).__name__ in {kinds!r}]"
    return f"[block for block in {in_script(path)} if type(block).__name__ == {type(blocks[0]).__name__!r}]"


def of_lists(lists):
    """The blocks of all lists as a script writes them."""
    return of_list(*lists[0]) if len(lists) == 1 else "[" + ", ".join(f"*{of_list(*entry)}" for entry in lists) + "]"
