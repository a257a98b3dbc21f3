"""Forward passes of outermost modules: in which phase each is, the caches that it is given, and which of the script's variables hold what
earlier ones made."""

import bisect
import collections
import inspect
import itertools
import operator
import re
import sys
import traceback
import types
import weakref

import torch

from . import device, imports, labels, later, reach
from .calls import variables_of
from .guard import guarded, instead
from .notes import note
from .session import counted, settings

_CACHE = re.compile(r"(^|_)(past|kv|key_value|cache|caches)(_|$)|past_key_values|^(cache_[kv]|[kv]_cache|kv_?caches?)$", re.IGNORECASE)
WITH_GRADIENTS, IN_TRAINING, BEGINS_GENERATION = 1, 2, 4
MOST_MEMBERS, DEEPEST, MOST_PASSES = 10_000, 3, 1 << 14
# Whose own ways techniques switch on: the heads of techniques/.
_PACKAGES = ("diffusers", "transformers")
_CONTAINERS = (list, tuple, set, dict, collections.deque)

_passes = 0
_length = 0
# Of the last passes, how many operators autograd had recorded when each began, and which step that was.
_sequences, _steps = collections.deque(maxlen=64), collections.deque(maxlen=64)
# Samples and tokens of each.
_sizes = []
_caches = []
# What the pass that begins is given, and the variables, by where and name, that passes were given.
_given, _fed_back = [], set()
# Of each text, while beams are searched: its tokens are those of one.
_beams = 1
# By what holds tensors of several passes: how, and where. The last look counts.
_retainers = {}
# By where and name of a container, a tensor that it had at the last look. And those that were filled anew since: they keep nothing of rounds before.
_had, _refilled = {}, set()
# Numbers of those in which torch.compile worked.
_compiling = set()
# Where the last backward pass that was told to keep its graph was called, and where one was that a step followed.
_kept_graph = _needless = None
# The variable with most of the host's pinned memory: bytes, name, where.
_pins = (0, "", ())
LEAST_PINNED = 1 << 30


def follow(at_the_end):
    global stop
    stop = at_the_end
    labels.begins_pass, labels.pass_ended, labels.label_caches_of = _begins, _ended, _label_caches_of
    labels.modules_by_variable = _modules_by_variable
    imports.when_imported("transformers.generation.utils", _whole_beams)

    @instead("load", torch)
    def load(*arguments, **more):
        loaded = load.__wrapped__(*arguments, **more)
        _label_weights(loaded)
        return loaded


@guarded("weights that were loaded")
def _label_weights(loaded, depth=2):
    """Of a checkpoint that is read to the GPU, by names of modules' parts: copies of the model's, and no data."""
    for name, value in loaded.items() if isinstance(loaded, dict) and device.library is not None else ():
        if isinstance(value, torch.Tensor) and type(name) is str and "." in name:
            labels.label_as(labels.WEIGHT_COPY, [value])
        elif depth:
            _label_weights(value, depth - 1)


def _whole_beams(module):
    """When a search over beams has ended, and how long its texts are, is read from the GPU: all are as long as they may be."""

    original = getattr(module.GenerationMixin, "_beam_search_has_unfinished_sequences", None)

    def has_unfinished(*arguments):
        search = dict(variables_of(sys._getframe(1)))
        if not search.keys() >= {"cur_len", "max_length", "beam_indices"}:
            return original(*arguments)
        global _beams
        goes_on = search["cur_len"] < search["max_length"]
        _beams = search.get("num_beams", 1) if goes_on else 1
        if not goes_on:
            # The numbers of the beams that each token came from; -1 is of no token.
            search["beam_indices"].zero_()
        return goes_on

    if original is not None:
        module.GenerationMixin._beam_search_has_unfinished_sequences = staticmethod(has_unfinished)


# Passes of a script that makes no steps after which one that has no end is stopped, and one that may have none.
_ENOUGH, _MANY = 32, 1 << 13
_next_look = _ENOUGH
stop = None


@guarded("the end of endless passes")
def _look_for_an_end():
    """Where a script makes no steps, its passes are counted."""
    global _next_look
    asked = settings.passes
    is_due = _passes >= asked if asked else settings.steps is not None and _passes >= _next_look
    if stop is None or asked == 0 or not is_due or reach.has_gone_backward or reach.has_optimizer(torch):
        return
    _next_look = 2 * _passes
    is_endless = asked or later.is_endless(sys._getframe(1), reach.is_own, reach.parsed)
    if is_endless or (is_endless is None and _passes >= _MANY):
        stop(0, _passes)


@guarded("the phase of a forward pass")
def _begins(root, arguments, named):
    """Before the forward pass of an outermost module that has parameters."""
    global _passes, _caches
    # What a backward pass computes again is no pass of its own.
    if torch._C._current_graph_task_id() != -1:
        return
    _look_for_an_end()
    flags = (keeps_graph(root, (arguments, named)) and WITH_GRADIENTS) | (root.training and IN_TRAINING)
    phase, size = device.FORWARD, reach.size_of(torch, (*arguments, *named.values()))
    given = (*zip(_parameters_of(type(root)), arguments), *named.items())
    _caches = [value for name, value in given if value is not None and _CACHE.search(name)]
    if not torch.is_grad_enabled():
        # Made since the last pass, and no output of it that is kept.
        labels.label_as(labels.DATA, _tensors_in([value for name, value in given if not _CACHE.search(name)], DEEPEST))
        # Of text, or with a cache: segment-anything generates masks.
        is_of_tokens = size[1] > 0 or bool(_caches)
        phase = device.GENERATION if is_of_tokens and reach.is_generating(sys._getframe(1)) else device.EVALUATION
        if phase == device.GENERATION and _begins_generation((*arguments, *named.values())):
            flags |= BEGINS_GENERATION
    device.library.vl_begin_pass(phase, flags, labels.number_of(root))
    _passes += 1
    _sequences.append(torch._C._autograd._get_sequence_nr())
    _steps.append(reach.step)
    if _passes <= MOST_PASSES:
        _sizes.append(tuple(each // _beams for each in size))
    _label_caches()
    # What a variable holds seldom changes later.
    _given[:] = _tensors_in((arguments, named), DEEPEST)
    if _passes <= 8 or _passes & (_passes - 1) == 0:
        look_at_variables()
    del _given[:]


def begin_replay():
    """Of a CUDA graph that a script replays by itself, outside of any module's call; its inputs have the size of those that were captured."""
    global _passes
    if labels.is_inside():
        return
    _look_for_an_end()
    device.library.vl_begin_pass(device.EVALUATION, 0, labels.last_root())
    _passes += 1
    if _passes <= MOST_PASSES:
        _sizes.append(_sizes[-1] if _sizes else (0, 0))


def compiled():
    _compiling.add(_passes)


@labels.past_their_classes
def keeps_graph(root, given):
    """Whether the pass keeps what a backward pass needs: not that of a frozen module, whatever the mode."""
    tensors = itertools.chain(root.parameters(), _tensors_in(given, DEEPEST)) if torch.is_grad_enabled() else ()
    return any(each.requires_grad for each in tensors)


def _parameters_of(kind):
    """Names of what a module's forward pass takes, for those that are given by their places.

    They are not kept: a class holds its script's globals, and with them its model and its optimizer.
    """
    try:
        return tuple(inspect.signature(kind.forward).parameters)[1:]
    # What torch.jit.script made has a descriptor in place of a function.
    except (AttributeError, TypeError, ValueError):
        return ()


@guarded("the caches of a forward pass")
def _ended():
    """After it: the caches hold what it added."""
    _label_caches()
    _caches.clear()


def _begins_generation(values):
    """Whether this pass is no continuation of the one before: that has one more token than it, or one after the whole text."""
    global _length
    length = next((each.shape[1] for each in values if isinstance(each, torch.Tensor) and each.dim() > 1), 0)
    before, _length = _length, length
    return length > 1 and not (before > 1 and length == before + 1)


# Addresses of what an engine has for all requests together, of which a kernel that is given it reads a few.
_pools = set()


def label_cache(cache):
    """Of an engine, which gives it to no module's call."""
    tensors = tensors_of(cache)
    _pools.update(tensor.untyped_storage().data_ptr() for tensor in tensors)
    labels.label_as(labels.KEY_VALUE_CACHE, tensors)


def is_of_a_pool(tensor):
    return bool(_pools) and tensor.untyped_storage().data_ptr() in _pools


def tensors_of(cache):
    return _tensors_in(cache, DEEPEST + 1)


def made():
    return _passes


def _label_caches():
    for cache in _caches:
        # Of an encoder and a decoder there are two, each with layers that have their tensors.
        labels.label_as(labels.KEY_VALUE_CACHE, _tensors_in(cache, DEEPEST + 1))


@guarded("caches that modules keep")
def _label_caches_of(root):
    """Caches that modules keep as their own."""
    for module in root.modules():
        for name, value in itertools.chain(vars(module).items(), module._buffers.items()):
            if _CACHE.search(name):
                labels.label_as(labels.KEY_VALUE_CACHE, _tensors_in(value, 1))


def _tensors_in(value, depth, is_one=operator.attrgetter("is_cuda")):
    """Tensors of the GPU in a container, or in the attributes of an object. Of a large one as many as name its lines."""
    found, waiting, looked = [], [(value, depth)], 0
    while waiting and looked < MOST_MEMBERS:
        value, depth = waiting.pop()
        looked += 1
        # By their types alone: a script's lazy objects make themselves when they are asked.
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            if is_one(value):
                found.append(value)
        elif depth and issubclass(kind, _CONTAINERS):
            members = value.values() if issubclass(kind, dict) else value
            waiting.extend((each, depth - 1) for each in itertools.islice(list(members), MOST_MEMBERS))
        elif depth and issubclass(kind, types.FunctionType):
            # What it captured is there as long as it is.
            waiting.extend((each.cell_contents, depth - 1) for each in value.__closure__ or () if each != types.CellType())
        elif depth and _has_attributes(value):
            waiting.extend((each, depth - 1) for each in _attributes(value).values())
    return found


def _is_pinned(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.is_pinned()


def _has_attributes(value):
    return type(value).__dictoffset__ != 0 and not issubclass(type(value), (type, types.ModuleType, types.FunctionType))


def _attributes(value):
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


@guarded("variables that hold tensors")
@labels.past_their_classes
def look_at_variables():
    """Names the blocks that variables of the script hold now, and finds those that hold tensors of several passes."""
    global _pins
    _retainers.clear()
    labels.forget(labels.VARIABLE)
    is_pinning = counted("vramlab_dry_pinned") >= LEAST_PINNED
    for where, name, value in _variables():
        if is_pinning:
            pinned = {each.data_ptr(): each.nbytes for each in _tensors_in(value, DEEPEST - 1, _is_pinned)}
            _pins = max(_pins, (sum(pinned.values()), name, where))
        if issubclass(type(value), (torch.nn.Module, torch.optim.Optimizer)):
            continue
        tensors = [each for each in _tensors_in(value, DEEPEST - 1) if not isinstance(each, torch.nn.Parameter)]
        if _is_state(value):
            labels.label_copies(tensors)
        how = _retains(value, tensors, (where, name))
        if issubclass(type(value), _CONTAINERS) and _is_refilled((where, name), tensors):
            how = None
        # Who holds graphs holds what they have saved.
        labelled = tensors if how and how[2] else [each for each in tensors if _is_held_by_variables(each)]
        if labelled:
            # What it keeps nobody else can drop.
            is_stage = any(each.__name__ == "_PipelineStageBase" for each in type(value).__mro__)
            labels.label_variable(labelled, f"{name} (PipelineStage)" if is_stage else name, *where)
        if how:
            _retainers.setdefault(id(value), (name, how, all(each.numel() == 1 for each in tensors), *where))
    if _needless is not None:
        name, *where = _needless
        _retainers["retain_graph"] = (name, ("retain_graph", 0, True), False, *where)
    own = next(_own_frames(), None) if labels.gradients_have_graphs() else None
    if own is not None:
        _retainers["create_graph"] = ("backward(create_graph=True)", ("create_graph", 0, True), False, own.f_code.co_filename, own.f_code.co_name)


@guarded("graphs that a backward pass keeps")
def goes_backward(keeps):
    global _kept_graph
    frame = next(_own_frames(), None) if keeps else None
    _kept_graph = frame and (f"retain_graph=True in line {frame.f_lineno}", frame.f_code.co_filename, frame.f_code.co_name)


def a_step_follows():
    """What the last backward pass before a step keeps nobody needs: weights are others then."""
    global _needless
    _needless = _kept_graph


@guarded("what a backward pass does not need")
@labels.past_their_classes
def look_before_backward(number):
    """Labels what variables of the script hold and no graph does; of a long training in some of its backward passes."""
    looks = number < 8 or number & (number - 1) == 0
    labels.forget(labels.DROPPABLE, int(looks))
    for _, _, value in _variables() if looks else ():
        if not issubclass(type(value), (torch.nn.Module, torch.optim.Optimizer)):
            labels.label_as(labels.DROPPABLE, [each for each in _tensors_in(value, DEEPEST - 1) if _is_held_by_variables(each)])


def _is_state(value, depth=1):
    """Whether it is a dict by names of modules' parts, as of a model's state, or has one: a batch may be that, too, of other shapes."""
    if not issubclass(type(value), dict):
        return False
    first = list(itertools.islice(value.items(), 10))
    return any(type(name) is str and "." in name for name, _ in first) or depth > 0 and any(_is_state(each, depth - 1) for _, each in first)


def _is_held_by_variables(tensor):
    """Whether memory is free when the script drops its variables: no graph has saved the tensor or a view of it."""
    try:
        base = tensor._base
        # Of its storage one use is the tensor's, one that of what it is a view of, and one this function's.
        uses, own = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata), 2 if base is None else 3
        return tensor._use_count() == 1 and uses == own and (base is None or base._use_count() == 2)
    # A class of tensors without a storage of its own.
    except (NotImplementedError, RuntimeError):
        return True


def _variables():
    """The script's own, of every frame of this thread, and attributes of its own objects."""
    for frame in _own_frames():
        where = frame.f_code.co_filename, frame.f_code.co_name
        for name, value in variables_of(frame):
            for part, of in _parts(name, value, 2):
                yield where, part, of


def _parts(name, value, depth):
    """An object of the script's, and its attributes: what a trainer has, and a meter of the trainer's."""
    yield name, value
    if depth and _is_own_object(value):
        for part, of in list(_attributes(value).items())[:200]:
            yield from _parts(f"{name}.{part}", of, depth - 1)


def _modules_by_variable():
    """The script's, and those that objects of libraries hold, as trainers do; without what torch.compile puts around them."""
    found = []
    for frame in _own_frames():
        for name, value in variables_of(frame):
            is_module = issubclass(type(value), torch.nn.Module)
            attributes = _attributes(value) if not is_module and _has_attributes(value) else {}
            held = [(name, value), *((f"{name}.{part}", of) for part, of in list(attributes.items())[:200])]
            found += [(of, getattr(each, "_orig_mod", each)) for of, each in held if issubclass(type(each), torch.nn.Module)]
    return found


def _own_frames():
    return (frame for frame, _ in traceback.walk_stack(sys._getframe(1)) if reach.is_own(frame.f_code.co_filename))


def _is_own_object(value):
    kind = type(value)
    if not _has_attributes(value):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__ == "__main__" or reach.is_own(file)


def _retains(value, tensors, which):
    """How a variable holds tensors of several passes: the container's type, "sum" of what was added, or "graph"; of how many; whether with their
    graphs."""
    if issubclass(type(value), _CONTAINERS):
        with_graphs = sum(1 for each in tensors if each.grad_fn is not None)
        count = with_graphs if with_graphs > 1 else len(tensors)
        return (type(value).__name__, count, with_graphs > 1) if count > 1 else None
    first = value.grad_fn if issubclass(type(value), torch.Tensor) and value.is_cuda else None
    node, of_passes = first, set()
    for _ in range(100):
        if node is None or node.name() != "AddBackward0":
            break
        # Terms of one pass are no sum of several.
        of_passes.add(bisect.bisect(_sequences, node._sequence_nr()))
        node = next((of for of, _ in node.next_functions if of is not None), None)
    if len(of_passes) > 1:
        return "sum", len(of_passes), True
    if any(each is value for each in _given):
        _fed_back.add(which)
    of_passes = _passes_of_graph(first)
    is_of_steps = len({_steps[each - 1] for each in of_passes if each}) >= _STEPS
    return ("graph", len(of_passes), True) if is_of_steps or which in _fed_back and len(of_passes) >= _CHAIN else None


# A graph of so many passes is fed back into: models that follow one another are fewer. And one of so many steps goes on, as a running mean does.
_CHAIN, _STEPS = 5, 3


def _passes_of_graph(node):
    """Those of the last passes that the graph of a tensor has nodes of, the nearest nodes first."""
    of_passes, seen, waiting = set(), set(), collections.deque([node] if node is not None else [])
    while waiting and len(seen) < 1000:
        node = waiting.popleft()
        inner = [of for of, _ in node.next_functions if of is not None and of not in seen]
        seen.update(inner)
        waiting.extend(inner)
        # What accumulates gradients is of no pass.
        if node.next_functions:
            of_passes.add(bisect.bisect(_sequences, node._sequence_nr()))
    return of_passes


def _is_refilled(which, tensors):
    had = _had.get(which, lambda: None)
    if which in _had and not any(each is had() for each in tensors):
        _refilled.add(which)
    elif which not in _had and tensors:
        _had[which] = weakref.ref(tensors[0])
    return which in _refilled


@guarded("variables that hold tensors of several passes")
def tell():
    """When the script is stopped, or has ended: its frames are there no more then, and what was seen last counts."""
    note(imported=[package for package in _PACKAGES if package in sys.modules])
    if _passes <= MOST_PASSES:
        note(pass_batches=_sizes)
        note(compiling=sorted(_compiling))
    held, name, where = _pins
    if held >= LEAST_PINNED:
        note(note=f"of the host's pinned memory {held / 2**30:.1f} GiB are in {name} ({', '.join(where)})")
    for name, (holder, count, with_graphs), numbers, file, function in _retainers.values():
        note(keeps=name, holder=holder, count=count, with_graphs=with_graphs, numbers=numbers, file=file, function=function)
