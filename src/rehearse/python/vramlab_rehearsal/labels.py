"""What blocks are for, and in which module they were made."""

import array
import functools
import gc
import itertools
import threading
import weakref

import torch

from . import calls, device
from .guard import guarded, instead
from .notes import note

OTHER, PARAMETER, GRADIENT, STATE, BUFFER, DATA, KEY_VALUE_CACHE, WEIGHT_COPY, VARIABLE, FROZEN, DROPPABLE = 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11

_modules = {}
_tensors = {}
_variables = {}
_roots = weakref.WeakSet()
# Of each root, where its parameters were after its last pass.
_addresses = weakref.WeakKeyDictionary()
_optimizers = weakref.WeakSet()
_names = weakref.WeakKeyDictionary()
# Names of parameters, and those that optimizers have, by themselves: an id may be another's later.
_parameters = _trained = None
# Labels that are not written yet: address, category and number of the name of each.
_waiting = array.array("Q")
_here = threading.local()
# Number of the module of the last forward pass.
_outermost = 0


# Called before each forward pass of an outermost module, with it and what it is given.
before_roots = []


# Of passes.py, which puts them here: the same of one with parameters, when its number is known; what follows it; caches that a module keeps.
begins_pass = pass_ended = label_caches_of = modules_by_variable = None


def follow():
    global _parameters, _trained
    # A package that only has PyTorch's name has none.
    from torch.utils.weak import WeakTensorKeyDictionary

    _parameters, _trained = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
    gc.callbacks.append(guarded("what only Python's garbage collector frees")(_collects))
    calls.around(guarded("modules at work")(_enters), guarded("modules at work")(_leaves))

    @instead("__deepcopy__", torch.Tensor)
    def deepcopy(self, memo):
        copied = deepcopy.__wrapped__(self, memo)
        label_copies([copied])
        return copied

    @instead("_apply", torch.nn.Module)
    def apply(self, fn, recurse=True):
        # What is replaced, as by .half(), was weights. Children come here by themselves.
        if device.library is not None:
            _label_before(self)
        return apply.__wrapped__(self, fn, recurse)


@guarded("labels of weights that are about to be replaced")
def _label_before(module):
    label_as(PARAMETER, module.parameters(recurse=False))


def _number_of(kind, table, name, key=None, **more):
    number = table.get(key or name)
    if number is None:
        number = table[key or name] = len(table) + 1
        note(**{kind: number, "name": name}, **more)
    return number


def _enters(module, arguments, named):
    global _outermost
    if device.library is None:
        return
    stack = getattr(_here, "stack", None)
    if stack is None:
        stack = _here.stack = []
    # What compiled autograd made of a backward pass, whose lines name modules as the forward pass did.
    is_backward = type(getattr(module, "_orig_mod", module)).__name__.startswith("CompiledAutograd")
    # What torch.jit.trace runs, whose sizes are tensors, is no forward pass of the script's own.
    if not stack and not is_backward and torch._C._get_tracing_state() is None:
        for called in before_roots:
            called(getattr(module, "_orig_mod", module), arguments, named)
    if not stack and not is_backward and module not in _roots and module not in _names:
        _see_root(calls.owner_of(module))
    number = _outermost if is_backward else _names.get(module)
    if number is None and stack and type(module).__module__.startswith("torch._dynamo"):
        # Around a part of a compiled graph, as DDP's buckets are.
        number = stack[-1][1]
    if number is None:
        # Made since, or inside of one that is no child.
        number = _names[module] = _number_of("module", _modules, type(module).__name__, type=type(module).__name__)
    if not stack:
        _outermost = number
    if not stack and not is_backward and is_model(module):
        begins_pass(module, arguments, named)
    stack.append((module, number))
    device.library.vl_set_module(number)


def _leaves(module):
    stack = getattr(_here, "stack", None)
    # One that could not be told of when it was entered is not there.
    if stack and stack[-1][0] is module:
        stack.pop()
        device.library.vl_set_module(stack[-1][1] if stack else 0)
        if not stack:
            if module in _roots:
                _label_replaced(module)
            pass_ended()


def is_model(module):
    """And not a loss, which may have a weight for each class: one with parameters, with weights in its buffers, as in 8 bits by hand, or frozen."""
    if next(module.parameters(), None) is not None or isinstance(module, torch.jit.ScriptModule):
        return True
    return sum(buffer.nbytes for buffer in module.buffers()) >= 1 << 20


def last_root():
    """The number of the module of the last forward pass."""
    return _outermost


def is_inside():
    """Whether a module is at work in this thread."""
    return bool(getattr(_here, "stack", None))


@guarded("the names of modules")
def _see_root(root):
    """The outermost module of a forward pass: what lives in it is known by its path from there."""
    _roots.add(root)
    _here.__dict__.setdefault("roots", weakref.WeakSet()).add(root)
    kind = _title(root)
    for path, module in root.named_modules():
        if module not in _names:
            name = _plain(f"{kind}.{path}")
            _names[module] = _number_of("module", _modules, name, type=type(module).__name__)
    label_root(root)
    begin_forward()


_titles = weakref.WeakKeyDictionary()


# By package.
_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def _title(root):
    """A model's class, with the engine that has it; where the script has several of that class, the variable that holds it, as a policy and its
    reference."""
    if root not in _titles:
        # What torch.compile puts around a module has the module's name.
        inner = getattr(root, "_orig_mod", root)
        held = [(name, module) for name, module in modules_by_variable() if type(module) is type(inner)]
        own = next((name for name, module in held if module in (root, inner)), None)
        is_one = len({id(module) for _, module in held}) < 2 or own is None
        engine = _ENGINES.get(type(inner).__module__.partition(".")[0])
        _titles[root] = f"{engine}'s {type(inner).__name__}" if engine else type(inner).__name__ if is_one else own
    return _titles[root]


def _plain(name):
    return ".".join(part for part in name.split(".") if part and part != "_orig_mod")


@guarded("the beginning of a forward pass")
def begin_forward():
    """At a new module or compiled function; a backward pass or an optimizer's step that goes through one stays what it is."""
    if device.library is not None:
        before = device.library.vl_enter(device.FORWARD)
        if before not in (0, device.FORWARD):
            device.library.vl_enter(before)


def past_their_classes(function):
    """Decorates what looks at a script's tensors: the `__torch_function__` of their classes is not asked, which may compute what it puts off."""

    @functools.wraps(function)
    def looks(*arguments):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments)

    return looks


@functools.lru_cache(maxsize=1)
def _shapes(parameters):
    """Of all parameters, of which there are so many."""
    return {each.shape for root in list(_roots) for each in root.parameters()}


@guarded("labels of copies")
@past_their_classes
def label_copies(tensors):
    """What has a weight's shape, and was copied outside of a model, is a copy of weights or of an optimizer's state."""
    shapes = _shapes(len(_parameters))
    label_as(WEIGHT_COPY, [each for each in tensors if each.is_cuda and each.shape in shapes])


@guarded("labels of weights that a forward pass replaced")
def _label_replaced(root):
    """What a pass gave parameters as new memory, as a momentum encoder's `parameter.data = ...` does."""
    now = [_address(parameter) for parameter in root.parameters()]
    if now != _addresses.get(root):
        _addresses[root] = now
        label_root(root)


@past_their_classes
def _address(parameter):
    return parameter.data_ptr() if type(parameter) is torch.nn.Parameter and parameter.layout == torch.strided else 0


@guarded("labels of a module's tensors")
def label_root(root):
    kind = _title(root)
    for name, parameter in root.named_parameters():
        name = _parameters.setdefault(parameter, _plain(f"{kind}.{name}"))
        _label(parameter, _kind_of(parameter), name)
        for scale in _scales(getattr(parameter, "quant_state", None)):
            _label(scale, _kind_of(parameter), name)
        if parameter.is_leaf and parameter.grad is not None:
            _label(parameter.grad, GRADIENT, name)
    for name, buffer in root.named_buffers():
        _label(buffer, BUFFER, _plain(f"{kind}.{name}"))
    _tell()
    label_caches_of(root)


def _kind_of(parameter):
    # One that an optimizer has is frozen for a while, as those of a discriminator are.
    return PARAMETER if parameter.requires_grad or parameter in _trained else FROZEN


def _scales(state):
    """What bitsandbytes keeps beside a weight in 4 bits: scales, and theirs."""
    for each in vars(state).values() if state is not None else ():
        if isinstance(each, torch.Tensor):
            yield each
        elif type(each) is type(state):
            yield from _scales(each)


def _collects(phase, _):
    if device.library is not None:
        device.library.vl_set_collecting(phase == "start")


@guarded("what only Python's garbage collector frees")
def collect():
    """At the script's end, or where memory ran out: what it then frees nothing else held."""
    if device.library is not None:
        gc.collect()


def label_all():
    for root in list(_roots):
        label_root(root)
    # What a step that ran out of memory had made.
    for optimizer in list(_optimizers):
        state(optimizer)
    _label_unused()


@guarded("labels of tensors of some classes")
@past_their_classes
def _is_ours_to_look_at(tensor):
    return tensor.is_cuda and not tensor.is_inference()


@guarded("labels of weights that no forward pass went through")
@past_their_classes
def _label_unused():
    """A moving average's are copies, and no data where they came from the host; others are parameters as any."""
    from torch._subclasses import FakeTensor

    objects = gc.get_objects()
    # Not isinstance, which asks a script's lazy objects for their class. The compiler's fake tensors have no memory.
    kinds = (each for each in objects if issubclass(type(each), torch.Tensor) and not issubclass(type(each), FakeTensor))
    # What was made in inference mode has no version.
    tensors = [each for each in kinds if _is_ours_to_look_at(each)]
    shapes = {each.shape for each in tensors if isinstance(each, torch.nn.Parameter)}
    roots = [list(root.parameters()) for root in list(_roots)]
    of_roots = {each.shape for root in roots for each in root}
    named = _unused_parameters(objects, roots)
    for each in tensors:
        # A plain tensor is one where it was written to and has a parameter's shape.
        plain = type(each) is torch.Tensor and not each.is_nested and each.is_leaf and not each.requires_grad
        if isinstance(each, torch.nn.Parameter):
            name = named.get(id(each), "")
            _label(each, _kind_of(each) if name or each.shape not in of_roots else WEIGHT_COPY, name)
        elif plain and each._version > 0 and each.shape in shapes:
            _label(each, WEIGHT_COPY, "")
    _tell()


def _unused_parameters(objects, roots):
    """Names of parameters by their outermost module, of those that no root has and that are no whole copy of a root's."""
    modules = [each for each in objects if issubclass(type(each), torch.nn.Module) and "_modules" in vars(each)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    copied = [[each.shape for each in root] for root in roots]
    seen = {id(each) for root in roots for each in root}
    for module in modules:
        parameters = list(module.parameters())
        if [each.shape for each in parameters] in copied:
            seen.update(map(id, parameters))
    outermost = (module for module in modules if id(module) not in inner)
    every = ((_title(module), *of) for module in outermost for of in module.named_parameters())
    return {id(each): _plain(f"{kind}.{name}") for kind, name, each in every if id(each) not in seen}


def label_as(category, tensors):
    for tensor in tensors:
        _label(tensor, category, "")
    if _waiting:
        _tell()


def forget(label, number=0):
    _waiting.extend((0, label, number))
    _tell()


def label_variable(tensors, name, file, function):
    number = _number_of("variable", _variables, name, (name, file, function), file=file, function=function)
    for tensor in tensors:
        _label_number(tensor, VARIABLE, number)
    _tell()


def gradients_have_graphs():
    """Whether a backward pass made a graph of the gradients, which holds what went into them, and is held by them."""
    return any(parameter.grad.grad_fn is not None for parameter in parameters_with_gradients(own_roots()))


def own_roots():
    """Models that this thread went through first: another's backward pass writes its gradients as they are read."""
    return list(getattr(_here, "roots", ()))


def training_roots():
    return [root for root in list(_roots) if root.training]


def parameters_with_gradients(roots):
    """Of what a script puts in a parameter's place, as torch.func does, PyTorch warns where its `grad` is read."""
    parameters = (parameter for root in roots for parameter in root.parameters())
    return (parameter for parameter in parameters if (parameter.is_leaf or parameter.retains_grad) and parameter.grad is not None)


def number_of(module):
    return _names.get(module, 0)


@guarded("labels of gradients")
def gradients(optimizer):
    _optimizers.add(optimizer)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = _parameters.get(parameter, "")
            _trained[parameter] = True
            _label(parameter, PARAMETER, name)
            gradient = parameter.grad
            if gradient is not None:
                _label(gradient, GRADIENT, name)
    _tell()


@guarded("labels of an optimizer's state")
def state(optimizer):
    for parameter, values in list(optimizer.state.items()):
        if isinstance(values, dict):
            name = _parameters.get(parameter, "")
            # L-BFGS has its history in lists.
            lists = [value for value in values.values() if isinstance(value, list)]
            for value in itertools.chain(values.values(), *lists):
                if isinstance(value, torch.Tensor):
                    _label(value, STATE, name)
    _label_untaken_gradients()
    _tell()


def _label_untaken_gradients():
    """After a step those that it has not taken: zero_grad may drop them before a step of theirs comes. None is left where each parameter has an
    optimizer of its own, as those have that step in the backward pass."""
    for parameter in parameters_with_gradients(own_roots() if len(_optimizers) < 8 else ()):
        _label(parameter.grad, GRADIENT, _parameters.get(parameter, ""))


def unfinished_histories():
    """Of optimizers as L-BFGS, which remember some last steps: how many they do so far, of how many, and bytes of each."""
    for optimizer in list(_optimizers):
        most = optimizer.param_groups[0].get("history_size", 0)
        for values in optimizer.state.values():
            made = values.get("old_dirs") or [] if isinstance(values, dict) else []
            if 0 < len(made) < most:
                # A step's direction, and the change of the gradient.
                yield type(optimizer).__name__, len(made), most, 2 * made[0].nbytes


@guarded("labels of tensors")
def _label(tensor, category, name):
    number = _tensors.get(name) or (_number_of("tensor", _tensors, name) if name else 0)
    _label_number(tensor, category, number)


@past_their_classes
def _label_number(tensor, category, number):
    # A distributed tensor's shard, the parts of one that is quantised.
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for part in flatten()[0]:
            _label_number(getattr(tensor, part), category, number)
        return
    # The mesh of a distributed tensor is one of its parts in newer versions of PyTorch.
    if not getattr(tensor, "is_cuda", False):
        return
    try:
        address = tensor.data_ptr()
    except (RuntimeError, ValueError):
        # No storage: a fake tensor, one that is sparse, a lazy module's before its first call.
        return
    if address:
        _waiting.extend((address, category, number))


def _tell():
    address, length = _waiting.buffer_info()
    device.library.vl_label(address, length // 3)
    del _waiting[:]
