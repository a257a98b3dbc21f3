"""What techniques are made of: they say in the trace what became of them, change a model before its first forward pass, or put a region around it."""

import ast
import dis
import functools
import importlib.util
import itertools
import linecache
import os
import re
import sys
import traceback
import weakref

from ... import calls
from ...guard import instead
from ...notes import note

TECHNIQUES = {}
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def technique(made):
    """Has a class stand for the file that it is in."""
    TECHNIQUES[made.__module__.rsplit(".", 1)[-1]] = made
    return made


class Technique:
    """One that says what became of it, once; the last word counts, so that what shows later can withdraw it."""

    # What the script calls its optimizers, the last one last, for those that are switched on together.
    optimizers = []

    def __init__(self, torch, name):
        self.torch = torch
        self.name = name
        self.said = None
        # What the script calls the model, and each that it trains.
        self.model = "model"
        self.trained = {}
        self.untouched = set()
        self.written = None
        self.name_optimizers()
        self.at_first_forward(self.write_again)
        self.begin()
        self.end_where_nothing_comes_of_it()

    def applied(self, snippet, change=""):
        self.written = snippet.strip("\n"), change, self.model
        self.write()

    def write(self):
        snippet, change, model = self.written
        # What was switched on before the model ran, such as another optimizer.
        model = next(iter(self.trained), model) if model == "model" else model
        trained = {other: self.optimizer_of(other) for other in self.trained}
        last = next((name for name, _ in reversed(Technique.optimizers)), "optimizer")
        optimizer = trained.get(model) or last
        # Those of one optimizer are one to what is made of parameters.
        shared = [other for other in trained if other != model and trained[other] and trained[other] == trained.get(model)]
        # Not functions to paste.
        parts = [(part, part.startswith(("def ", "class ", "@"))) for part in re.split(r"(?m)^(?=\S)", snippet)]
        is_of_optimizers = any(_OPTIMIZER.search(part) for part, is_function in parts if not is_function)
        together = f"(p for each in ({', '.join([model, *shared])}) for p in each.parameters())"

        def named(part):
            part = part.replace("model.parameters()", together) if is_of_optimizers and shared else part
            # No part of a model, which may be called so, too.
            return _OPTIMIZER.sub(optimizer, re.sub(r"(?<![\w.])model\b", model, part))

        snippet = "".join(part if is_function else named(part) for part, is_function in parts)
        # A critic that an optimizer's parameters go through is none that is trained.
        others = [other for other in trained if other != model and trained[other] and other not in self.untouched]
        others = [other for other in others if not (is_of_optimizers and other in shared)]
        others = [f"{other} with {trained[other]}" for other in others]
        if others:
            snippet = f"# each of these lines for {model} with {optimizer}, and once more for {', '.join(others)}\n{snippet}"
        self._say(applied=True, change=change, snippet=snippet)

    def write_again(self, root):
        """Once another of the models that the script trains is known."""
        if self.written and self.said["applied"]:
            self.write()
        # Not that of a teacher or a critic that runs later.
        self.model = next(iter(self.trained), "model")

    def optimizer_of(self, model):
        """What the script calls the optimizer of a model's parameters; none where none that it has a name for has them."""
        root = self.trained[model]()
        parameters = set() if root is None else {id(parameter) for parameter in root.parameters()}
        made = [(name, optimizer()) for name, optimizer in Technique.optimizers]
        groups = {name: optimizer.param_groups for name, optimizer in made if hasattr(optimizer, "param_groups")}
        names = [name for name in groups if any(id(each) in parameters for group in groups[name] for each in group["params"])]
        return names[-1] if names else None

    def refused(self, reason):
        self._say(applied=False, reason=reason)

    def refuse(self, reason):
        """Nothing that the script does can change it."""
        self.refused(reason)
        os._exit(0)

    def needs(self, package, what=""):
        if not is_installed(package):
            self.refuse(f"{package}{what} is not installed")

    def needs_a_call(self):
        if not self.is_called:
            self.refuse(f"the script calls {self.model}.forward(...), which it does not change: call {self.model}(...)")

    def _say(self, **more):
        if self.said != more:
            self.said = more
            note(technique=self.name, **more)

    def name_optimizers(self):
        """Follows what the script assigns each optimizer to that it makes."""

        def new(kind, *_, **__):
            made, name = object.__new__(kind), assigned_to(sys._getframe(1))
            if name:
                Technique.optimizers.append((name, weakref.ref(made)))
            return made

        self.torch.optim.Optimizer.__new__ = new

    def end_where_nothing_comes_of_it(self):
        """What a whole step had nothing for is not waited for any longer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        stepped = set()

        def begins(optimizer, *_):
            if id(optimizer) in stepped and self.said is not None and not self.said["applied"]:
                os._exit(0)

        register_optimizer_step_pre_hook(begins)
        register_optimizer_step_post_hook(lambda optimizer, *_: stepped.add(id(optimizer)))

    def around_forward(self, enters, leaves=lambda: None):
        """Calls back around each outermost forward pass, before the module's hooks are looked up: a callback may add some."""
        calls.around_outermost(self.or_refused(enters), self.or_refused(leaves))

    def or_refused(self, callback):
        """What fails in a script's own call is left out there, and with it the technique."""

        @functools.wraps(callback)
        def call(*arguments):
            try:
                return callback(*arguments)
            except self.torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.refused(f"it could not be switched on here: {type(error).__name__}: {error}")

        return call

    def at_first_forward(self, callback):
        """Calls back with each outermost module before its first forward pass, and again before the next where it says False: a script may evaluate
        a model before it trains it."""
        seen = weakref.WeakSet()

        def enters(module):
            # Children come inside of their parent's call; a second model (a critic, a teacher) is an outermost one, too.
            # A loss is one without parameters, and has nothing to say about the model; nor has a sequence that is made anew of
            # a model's blocks, as for a checkpoint, which calls it by itself in the backward pass.
            if module not in seen and any(part not in seen and part._parameters for part in module.modules()):
                called, module = module, calls.owner_of(module)
                self.is_called = module is called
                new = [part for part in module.modules() if part not in seen]
                seen.update(new)
                self.model = variable_of(module)
                if any(parameter.requires_grad for parameter in module.parameters()):
                    self.trained.setdefault(self.model, weakref.ref(module))
                if callback(module) is False:
                    seen.difference_update(new)

        self.around_forward(enters)

    def before_backward(self, callback):
        callback, autograd = self.or_refused(callback), self.torch.autograd

        @instead("_engine_run_backward", autograd.graph, autograd)
        def run_backward(*arguments, **more):
            callback()
            return run_backward.__wrapped__(*arguments, **more)


class OfModel(Technique):
    """One that changes a model before its first forward pass."""

    nothing = "the script runs no module"

    def begin(self):
        self.refused(self.nothing)
        self.at_first_forward(self.of_each)

    def of_each(self, root):
        """What there is nothing for in a second model, as a critic, stays as it is in the first."""
        known, written, name = self.said, self.written, self.model
        again = self.first(root)
        if known["applied"] and not self.said["applied"]:
            self.untouched.add(name)
            self.written = written
            self.write()
        return again


def narrow(root, kind):
    """A model's weights and inputs in half precision."""
    import torch

    def narrowed(_, *inputs):
        return torch.utils._pytree.tree_map(lambda each: each.to(kind) if isinstance(each, torch.Tensor) and each.is_floating_point() else each, inputs)

    root.to(kind)
    root.register_forward_pre_hook(narrowed, with_kwargs=True)


class Region(Technique):
    """A context manager from the outermost module's forward pass to the backward pass: model and loss."""

    region = None

    def begin(self):
        self.around_forward(self.enters, self.leaves)
        self.at_first_forward(self.first)
        self.before_backward(self.leave)

    def active(self):
        return self.said is not None and self.said["applied"]

    def enters(self, _):
        # What a backward pass computes again has what its forward pass had by itself.
        if self.region is None and self.active() and self.torch._C._current_graph_task_id() == -1:
            self.region = self.make()
            self.region.__enter__()

    def leaves(self):
        # Nothing goes back through what an evaluation computes.
        if not self.torch.is_grad_enabled():
            self.leave()

    def leave(self):
        if self.region is not None:
            region, self.region = self.region, None
            region.__exit__(None, None, None)


def variable_of(module):
    """What the script calls a module: a variable of its outermost frame that has it, or what `self` has there, `model` where it can be; `model`, too,
    where none has it."""
    # Without this one: a frame that refers to itself lives on, and the arguments of those that called it with it.
    for frame, _ in reversed(list(traceback.walk_stack(sys._getframe(1)))):
        if not _is_the_scripts(frame):
            continue
        variables = dict(calls.variables_of(frame))
        names = [name for name, value in variables.items() if value is module and not name.startswith("_")]
        own = getattr(variables.get("self"), "__dict__", {})
        names = names or [f"self.{name}" for name, value in {**own, **own.get("_modules", {})}.items() if value is module]
        if names:
            return "model" if "model" in names else names[0]
    return "model"


def _is_the_scripts(frame):
    file = frame.f_code.co_filename
    return "site-packages" not in file and not file.startswith(_OURS)


_OPTIMIZER = re.compile(r"(?<![\w.])optimizer(?= = |\)|\.\w)")


def assigned_to(frame):
    """The variable, or attribute of one, that the script stores the result of its call in; none where the frame is not the script's, or does something
    else with it."""
    if not _is_the_scripts(frame):
        return None
    then = (each for each in dis.get_instructions(frame.f_code) if each.offset > frame.f_lasti and each.opname != "EXTENDED_ARG")
    first, second = itertools.islice(itertools.chain(then, [None, None]), 2)
    if first and first.opname in ("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF"):
        return first.argval
    # Two in one, from Python 3.13 on.
    if first and first.opname.startswith("STORE_FAST_"):
        return first.argval[0]
    is_attribute = second and first.opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL")) and second.opname == "STORE_ATTR"
    return f"{first.argval}.{second.argval}" if is_attribute else None


def rewritten(frame, function, takes, keeps=(), drops=(), **more):
    """The script's statement that a frame is at, with another function called in the place of its own, and where it stands. `takes` are the names of
    the first arguments in the script's own, `keeps` of those that both have by name, `drops` of those that say nothing, `more` is added. From Python
    3.11 on, which knows where a call is."""
    code = frame.f_code
    at = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
    try:
        first, last, begin, end = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
        lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
        whole, before = b"".join(lines), sum(map(len, lines[:-1]))
        call = ast.parse(b"(" + whole[begin : before + end] + b")", mode="eval").body
        at = at if first == last else f"{at.rsplit(':', 1)[0]}:{first}-{last}"
        named = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg not in drops}
        given = [*map(ast.unparse, call.args), *(named.pop(name) for name in takes[len(call.args) :] if name in named)]
        if len(given) > len(takes) or not named.keys() <= set(keeps):
            raise ValueError
        named.update((name, repr(value)) for name, value in more.items())
        words = f"{function}({', '.join([*given, *(f'{name}={value}' for name, value in named.items())])})"
        statement = f"{whole[:begin].decode().lstrip()}{words}{whole[before + end :].decode().rstrip()}"
    except (AttributeError, TypeError, IndexError, SyntaxError, ValueError):
        return f"{function}(...)  # instead of the call at {at}, with its {' and '.join([*takes, *keeps])}"
    try:
        ast.parse(statement)
    except SyntaxError:
        return f"{words}  # instead of the call at {at}, in its statement"
    return f"{statement}  # at {at}"


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def uses_trainer():
    """Whether the script trains by Hugging Face's Trainer, whose arguments switch on what others write themselves."""
    return "transformers.trainer" in sys.modules
