"""What the steps of a rehearsal do not reach: evaluation, generation, saving, what comes later (later.py), and batches larger than those that were seen.
Told by what the script has for it and did not come to, when it is stopped after its steps."""

import ast
import collections.abc
import functools
import gc
import os
import re
import sys
import traceback
import weakref

import torch

from . import imports, labels, later, padding, pools
from .guard import guarded, instead
from .notes import note

step = 1

_did = set()
# Places of calls that were made: of `eval`, and of `train` with False; of contexts without gradients, by their line, and of functions of such.
_evals, _without_gradients = set(), set()
_iterated = weakref.WeakSet()
# By its first parameter: of models that passes with gradients went through, whether in training, in evaluation or both; and those that gave something
# without gradients.
_trained, _asked = {}, set()
_shapes = {}
# Of the last forward pass.
_last = {}
# What modules are known by: their first parameter, which a wrapper shares.
_models = weakref.WeakKeyDictionary()
# By step and model: samples that went through it, and tokens.
_batches = {}
_batches_of = 0
# By model, the largest of its forward passes since the last backward pass.
_forward = {}
# Functions of the script that call models: their files and first lines. And whether anything went backward.
_callers = set()
has_gone_backward = False
# By model, the largest that an optimizer evaluated in the step that it makes.
_evaluated = {}

SAVING = ("save_pretrained", "save_checkpoint", "save_state", "save_model", "save_file")
MOST_FILES, MOST_BYTES, MOST_TOLD = 100, 1 << 20, 2
# As many steps as have a record of what their operators do (src/sim/native/python/work.cpp), and some more.
MOST_BATCHES = 8


def follow(torch):
    module, loader = torch.nn.Module, torch.utils.data.DataLoader

    def evaluates(caller):
        _evals.add((caller.f_code.co_filename, caller.f_lineno))

    @instead("eval", module)
    def set_eval(self):
        evaluates(sys._getframe(1))
        return set_eval.__wrapped__(self)

    @instead("train", module)
    def set_train(self, mode=True):
        if not mode:
            evaluates(sys._getframe(1))
        return set_train.__wrapped__(self, mode)

    is_read = guarded("which DataLoaders are read")(_iterated.add)

    @instead("__iter__", loader)
    def iterate(self):
        is_read(self)
        return iterate.__wrapped__(self)

    for kind in (torch.no_grad, torch.inference_mode):
        _watch(kind)
    labels.before_roots.append(_enters)
    _saves("save", torch)
    for library, name in (("safetensors.torch", "save_file"), ("torch.distributed.checkpoint", "save")):
        imports.when_imported(library, functools.partial(guarded(f"saving by {library.removesuffix('.torch')}")(_saves), name))


def _watch(kind):
    @guarded("blocks without gradients")
    def entered(frame):
        # Of a decorated function, whose code stands in the frame of its wrapper.
        function = frame.f_locals.get("func") if frame.f_code.co_name == "decorate_context" else None
        code = getattr(function, "__code__", None)
        _without_gradients.add((code.co_filename, code.co_firstlineno) if code else (frame.f_code.co_filename, frame.f_lineno))

    @instead("__enter__", kind)
    def enter(self):
        entered(sys._getframe(1))
        return enter.__wrapped__(self)


def _saves(name, saver):
    @instead(name, saver)
    def save(*arguments, **more):
        _did.add("saving")
        return save.__wrapped__(*arguments, **more)


@guarded("sizes of inputs")
def _enters(root, arguments, named):
    """Before the forward pass of an outermost module."""
    # What checkpointing computes again is no pass of its own.
    if torch._C._current_graph_task_id() != -1:
        return
    # FSDP has its modules keep whole parameters in the place of parts, from the first micro-batch of a pipeline on.
    model = _models.setdefault(root, id(next(root.parameters(), None)))
    if not has_gone_backward and torch.is_grad_enabled() and len(_callers) < MOST_FILES:
        caller = next((frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if is_own(frame.f_code.co_filename)), None)
        if caller is not None:
            _callers.add((caller.f_code.co_filename, caller.f_code.co_firstlineno))
    if not torch.is_grad_enabled():
        if is_generating(sys._getframe(1)):
            _did.add("generation")
        else:
            _asked.add(model)
        return
    _trained.setdefault(model, set()).add(root.training)
    named = dict(named)
    names = getattr(getattr(root.forward, "__code__", None), "co_varnames", ())[1:]
    for at, value in enumerate(arguments):
        named[names[at] if at < len(names) else f"argument {at + 1}"] = value
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            padding.given(value)
        _see(torch, (type(root).__name__, name), value)
    # Not a loss, which has no parameters.
    if model != id(None):
        _count(torch, model, root.training, named)


def is_generating(frame):
    return any(each.f_code.co_name == "generate" for each, _ in traceback.walk_stack(frame))


def _count(torch, model, is_training, named):
    """Samples are the rows of the first input that has some; tokens its elements, where they are whole numbers in rows."""
    global _batches_of
    if step > MOST_BATCHES:
        return
    # A step that is counted anew, after trials, begins anew.
    if _batches_of != step:
        _batches_of = step
        _batches[step] = {}
    size, before = size_of(torch, named.values()), _forward.get(model, (False, 0, 0))
    if size[0]:
        # An evaluation that keeps its graphs has samples of no step.
        sum_of = is_training, before[1] + size[0], before[2] + size[1]
        _forward[model] = sum_of if _is_pipeline else max(before, (is_training, *size))


_is_pipeline = False


def sends_to_one():
    """A rank that sends to single others is a stage of a pipeline: several micro-batches go forward before the first goes back."""
    global _is_pipeline
    _is_pipeline = True


def step_begins():
    _evaluated.clear()


def goes_backward(is_in_step):
    """Of the forward passes since the last backward pass the largest counts: others are of the same samples, as for metrics or of a siamese network.
    Sizes are those of the last: before it there may be an evaluation, or a pass that makes lazy weights. What an optimizer evaluates in one step of
    its own, as L-BFGS does, are the same samples, too."""
    for key, shape in _last.items():
        _vary(key, shape)
    _last.clear()
    if not is_in_step:
        step_begins()
    for model, (_, *size) in _forward.items():
        before, known = _batches.get(step, {}).get(model, (0, 0)), _evaluated.get(model, (0, 0))
        if is_in_step:
            size = _evaluated[model] = max(known, tuple(size))
        _batches.setdefault(step, {})[model] = before[0] + size[0] - known[0], before[1] + size[1] - known[1]
    _forward.clear()


def size_of(torch, values):
    """Samples and tokens of what a forward pass is given; of one that is traced sizes are tensors, whose use would be in the trace."""
    if torch.jit.is_tracing():
        return 0, 0
    for value in [inner for value in values for inner in (value.values() if isinstance(value, collections.abc.Mapping) else [value])]:
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0]:
            is_text = value.dim() == 2 and not (value.is_floating_point() or value.is_complex() or value.is_nested)
            return value.shape[0], value.numel() if is_text else 0
        if isinstance(value, (list, tuple)) and value and all(isinstance(each, torch.Tensor) for each in value):
            return len(value), 0
    return 0, 0


def _see(torch, key, value):
    several = isinstance(value, (list, tuple))
    tensors = [each for each in (value if several else [value]) if isinstance(each, torch.Tensor)]
    # A tensor of samples that differ in length has no size there, a traced one a symbol.
    if not tensors or any(each.is_nested or not all(type(size) is int for size in each.shape) for each in tensors):
        return
    shapes = [tuple(each.shape) for each in tensors]
    if len({len(shape) for shape in shapes}) > 1:
        return
    # Of several, as the images of a batch: how many, and the largest.
    shape = ([len(shapes)] if several else []) + [max(sizes) for sizes in zip(*shapes)]
    _last[key] = shape


def _vary(key, shape):
    known = _shapes.setdefault(key, [shape, shape, step])
    if len(known[0]) == len(shape):
        most = [max(sizes) for sizes in zip(known[1], shape)]
        if most != known[1]:
            known[2] = step
        known[:2] = [min(sizes) for sizes in zip(known[0], shape)], most


@guarded("samples of steps")
def tell_batches():
    """Of each step, what went through the model that least went through: a discriminator sees samples more than once."""

    def least(sizes):
        return min(sizes, key=lambda size: (size[0], -size[1]), default=(0, 0))

    last = max(_batches, default=0)
    if last:
        note(batches=[least(_batches.get(number, {}).values()) for number in range(1, last + 1)])


@guarded("what was not reached")
def tell():
    """When the script is stopped, within an optimizer's step."""
    tell_batches()
    for (module, name), (least, most, at) in _shapes.items():
        if least != most:
            note(varied=name, module=module, least=least, most=most, step=at)
    padding.tell()
    # By a pass without gradients, or one that keeps them all the same.
    if _trained.keys() & _asked or any(len(modes) > 1 for modes in _trained.values()):
        _did.add("evaluation")
    found = {}
    trainers, names = _trainers_in_frames()
    for trainer in trainers:
        _of_trainer(trainer, found)
    for loader in gc.get_objects():
        if issubclass(type(loader), torch.utils.data.DataLoader) and loader not in _iterated and id(loader) in names:
            found.setdefault("evaluation", []).append((f"nothing was read from the DataLoader {names[id(loader)]}", "", 0))
    for name, made, most, each in labels.unfinished_histories():
        what = f"{made} of {most} steps so far, {each / 2**20:.1f} MiB each"
        found.setdefault(f"the whole history of {name}", []).append((what, "", 0))
    for file in dict.fromkeys((*own_files(), *_of_started_library())):
        _of_source(file, found)
    known = {(file, line) for evidence in found.values() for _, file, line in evidence}
    rest = [(what, file, line) for what, file, line in later.of_frames(sys._getframe(1), is_own, parsed, _trained_now()) if (file, line) not in known]
    for kind, evidence in found.items():
        if kind not in _did:
            for what, file, line in evidence[:MOST_TOLD]:
                note(unreached=kind, what=what, file=file, line=line)
    for what, file, line in rest[: 2 * MOST_TOLD]:
        note(unreached="later", what=what, file=file, line=line)


@guarded("a backward pass that was not reached")
def tell_of_backward():
    """When the script has ended and nothing went backward: a function that calls a model, and would have gone backward from there."""
    # A script that failed may have been about to.
    for file, line in () if has_gone_backward or hasattr(sys, "last_value") else sorted(_callers):
        tree = parsed(file)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree is not None else []
        # A decorated function begins at its first decorator; a script's own lines at 1 or before.
        own = next((node for node in functions if line in (node.lineno, *(each.lineno for each in node.decorator_list))), tree)
        waiting = list(own.body) if own is not None else []
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                continue
            if isinstance(node, ast.Call) and re.fullmatch(r"(.*\.)?(backward|autograd\.grad)", ast.unparse(node.func)):
                return note(unreached="backward pass", what=f"{ast.unparse(node.func).split('.')[-1]}(...)", file=file, line=node.lineno)
            waiting.extend(ast.iter_child_nodes(node))
    return None


def _trainers_in_frames():
    """Trainers that are at work, and what the script calls its objects."""
    trainers, names = [], {}
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        variables = frame.f_locals
        for kind in type(variables.get("self")).__mro__:
            if kind.__name__ == "Trainer" and kind.__module__.split(".")[0] in ("transformers", "lightning", "pytorch_lightning"):
                trainers.append(variables["self"])
                break
        if is_own(frame.f_code.co_filename):
            names.update((id(value), name) for name, value in variables.items())
    return {id(trainer): trainer for trainer in trainers}.values(), names


def _trained_now():
    """Whether an object is an optimizer, or has one, or is a model that trains."""
    roots = {id(root) for root in labels.training_roots()}

    def is_trained(value):
        if issubclass(type(value), torch.nn.Module):
            return id(value) in roots
        try:
            # Not a property, which would be code of the script's.
            held = list(object.__getattribute__(value, "__dict__").values())
        except AttributeError:
            held = []
        return any(issubclass(type(each), torch.optim.Optimizer) for each in (value, *held))

    return is_trained


def _of_started_library():
    """Files in which the loop stands, where a library is started itself, by a command of its own or `python -m`."""
    files = [os.path.abspath(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(sys._getframe(1))]
    files = [file for file in files if file.endswith(".py") and "/vramlab_rehearsal/" not in file]
    # A worker is started by a library, too.
    found = re.match(r".*/(?:site|dist)-packages/[^/]+/", files[-1]) if files and not pools.here.depth else None
    return [file for file in files if found and file.startswith(found[0])]


def _of_trainer(trainer, found):
    def add(kind, what):
        found.setdefault(kind, []).append((what, "", 0))

    arguments = getattr(trainer, "args", None)
    if arguments is None:
        if getattr(trainer, "enable_validation", False):
            add("evaluation", "the Trainer's validation")
        if getattr(trainer, "checkpoint_callback", None) is not None:
            add("saving", "the Trainer's ModelCheckpoint")
        return
    # An enumeration's or a text.
    set_to = {name: str(getattr(value, "value", value)) for name, value in vars(arguments).items()}
    evaluates = set_to.get("eval_strategy", set_to.get("evaluation_strategy", "no"))
    if evaluates != "no":
        add("evaluation", f'the Trainer\'s, eval_strategy="{evaluates}"')
        if set_to.get("predict_with_generate") == "True":
            add("generation", "the Trainer's, predict_with_generate=True")
    if set_to.get("save_strategy", "no") != "no":
        add("saving", f'the Trainer\'s, save_strategy="{set_to["save_strategy"]}"')


def is_own(file):
    if not file.endswith(".py") or "/vramlab_rehearsal/" in file:
        return file.startswith("cell ")
    return not any(part in file for part in ("/site-packages/", "/dist-packages/", "/lib/python3", *imports.libraries()))


def own_files():
    files = {os.path.abspath(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    own = sorted(file for file in files if is_own(file) and os.path.isfile(file) and os.path.getsize(file) < MOST_BYTES)
    main = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    return sorted(own, key=lambda file: file != main)[:MOST_FILES]


def has_optimizer(torch):
    return any(issubclass(type(each), torch.optim.Optimizer) for each in gc.get_objects())


@functools.cache
def captures():
    """Whether the script has a CUDA graph captured somewhere."""
    trees = filter(None, map(parsed, own_files()))
    calls = (node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(re.fullmatch(r"(.*\.)?(CUDAGraph|make_graphed_callables|cuda\.graph)", ast.unparse(func)) for func in calls)


@functools.lru_cache(maxsize=MOST_FILES)
def parsed(file):
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _of_source(file, found):
    tree = parsed(file)
    if tree is None:
        return
    saves, savers = set(), {"torch"}
    imported = ((node, alias) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names)
    for node, alias in imported:
        module, name = getattr(node, "module", None) or "", alias.asname or alias.name.split(".")[-1]
        if module.split(".")[0] in ("torch", "safetensors") and alias.name in ("save", "async_save", *SAVING):
            saves.add(name)
        if f"{module}.{alias.name}".endswith("torch.distributed.checkpoint"):
            savers.add(name)
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        if isinstance(node, (ast.With, ast.FunctionDef)):
            what = _without_gradients_at(file, node)
            if what:
                found.setdefault("evaluation", []).append((what, file, node.lineno))
        elif isinstance(node, ast.Call):
            kind = _kind_of(file, node, saves, savers)
            if kind:
                name = ast.unparse(node.func).rsplit(".", 2)
                shown = f"{name[-2] if len(name) == 2 else '...'}.{name[-1]}" if len(name) > 1 else name[0]
                found.setdefault(kind, []).append((f"{shown}(...)" if node.args or node.keywords else f"{shown}()", file, node.lineno))


def _without_gradients_at(file, node):
    """A block or function without gradients that was never entered."""
    given = [item.context_expr for item in node.items] if isinstance(node, ast.With) else node.decorator_list
    for each in given:
        text = ast.unparse(each)
        if any(name in text for name in ("no_grad", "inference_mode", "set_grad_enabled(False)")):
            # A function's code begins at its first decorator.
            lines = range(node.lineno, max(node.body[0].lineno, node.lineno + 1)) if isinstance(node, ast.With) else [each.lineno for each in given]
            if not any((file, line) in _without_gradients for line in lines):
                return f"with {text}" if isinstance(node, ast.With) else f"@{text} {node.name}"
    return None


def _kind_of(file, call, saves, savers):
    if isinstance(call.func, ast.Name):
        name = call.func.id
        if name in saves:
            return "saving"
        # A class (EvalPrediction) is no evaluation.
        named = name.lstrip("_")
        is_evaluation = named != "eval" and (named.startswith(("eval", "valid", "estimate_loss")) or named == "test")
        return "evaluation" if is_evaluation else None
    if not isinstance(call.func, ast.Attribute):
        return None
    owner, name = ast.unparse(call.func.value).split(".")[-1], call.func.attr
    if name == "train":
        given = [each for each in call.args[:1]] + [each.value for each in call.keywords if each.arg == "mode"]
        is_off = any(isinstance(each, ast.Constant) and each.value is False for each in given)
        return "evaluation" if is_off and (file, call.lineno) not in _evals else None
    if name == "eval" and not call.args and (file, call.lineno) not in _evals or name in ("evaluate", "validate"):
        return "evaluation"
    if name == "generate":
        return "generation"
    return "saving" if name in SAVING or (owner in savers and name in ("save", "async_save")) else None
