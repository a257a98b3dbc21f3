"""torch.compile under rehearsal: Dynamo, AOTAutograd and Inductor run as they are; the kernels that Inductor writes are neither compiled nor launched.

What a compiled graph allocates stands in the Python code that Inductor writes around its kernels, and that code runs. So its bytes are those of a
GPU as long as Inductor chooses the same; where it would time alternatives on the GPU, a choice is made for it and noted.
"""

import functools
import math
import os
import re

import torch

from . import device, imports
from .guard import guarded, instead
from .notes import note
from .session import settings


def folder():
    """By the name of the folder that these files are in: others read no graphs of these."""
    return os.path.join(settings.graphs, os.path.basename(settings.libraries), str(torch.__version__))


def follow(torch):
    for name, change in {
        "torch._dynamo": _dynamo,
        "torch._functorch.config": functools.partial(_set, enable_remote_autograd_cache=False),
        # There is nothing to compile for which other processes would be worth their start.
        "torch._inductor.config": functools.partial(
            _set, compile_threads=1, fx_graph_remote_cache=False, autotune_remote_cache=False, bundled_autotune_remote_cache=False
        ),
        "torch._inductor.compile_fx": _not_ahead_of_time,
        "torch._inductor.runtime.cache_dir_utils": functools.partial(_keep_in, folder()),
        "torch._inductor.codecache": _tell_lines,
        # Instead of the hash of all of Triton's files, and ptxas asked for its version.
        "torch._inductor.runtime.triton_compat": functools.partial(_set, triton_key=lambda: torch.version.__version__),
        "torch.utils._triton": functools.partial(_set, triton_hash_with_backend=lambda: torch.version.__version__),
        "torch._inductor.runtime.triton_heuristics": _launch_nothing,
        "torch._inductor.runtime.benchmarking": _time_nothing,
        "torch._inductor.select_algorithm": _choose_the_first,
        "torch._inductor.fx_passes.pad_mm": _pad,
        "triton.backends.nvidia.driver": _no_driver,
    }.items():
        imports.when_imported(name, change)


# Called with the reason where a graph could not be compiled and runs eagerly.
when_it_fails = []


# ---- loading it ----------------------------------------------------------------------------------------------------------------------


_undo = []


def load_the_compiler():
    """It is there, and sees PyTorch as it is."""
    while _undo:
        _undo.pop()()


def leave_unloaded(torch):
    """Optimizers and checkpoints would load it to tell it to leave them alone: a third of a short rehearsal's time. Where somebody else does, they do."""
    optimizers = torch.optim.Optimizer

    def leave_alone(owner):
        for function in vars(owner).values():
            # Where `torch._compile._disable_dynamo` keeps the function as the compiler gives it back.
            if getattr(getattr(function, "__code__", None), "co_filename", "") == torch._compile.__file__:
                setattr(function.__wrapped__, "__dynamo_disable", function.__wrapped__)
                _undo.append(functools.partial(delattr, function.__wrapped__, "__dynamo_disable"))

    leave_alone(optimizers)
    imports.when_imported("torch.utils.checkpoint", leave_alone)
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) and issubclass(kind, optimizers) else None
        code = getattr(step, "__code__", None)
        if getattr(code, "co_name", "") == "_use_grad" and code.co_freevars == ("func",):
            step.__code__ = _as_differentiable(None).__code__
            _undo.append(functools.partial(setattr, step, "__code__", code))


def _as_differentiable(func):
    """What `torch.optim.optimizer._use_grad_for_differentiable` makes of a step, without its breaks in a compiler's graph."""

    def use_grad(*args, **kwargs):
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return use_grad


# ---- Dynamo ------------------------------------------------------------------------------------------------------------------------------


def _dynamo(dynamo):
    from torch._dynamo import callback, exc, output_graph, trace_rules
    from torch._dynamo.variables import functions

    from . import labels, passes, steps

    load_the_compiler()
    # What it takes of the host is in no forward pass's time.
    callback.on_compile_start(guarded("passes in which a graph is compiled")(lambda *_: passes.compiled()))
    # Our functions run between the script's and are not compiled with them.
    trace_rules.add(__package__)

    @instead("call_user_compiler", output_graph.OutputGraph)
    def call_user_compiler(self, gm, *arguments, **more):
        labels.begin_forward()
        _name_modules(gm, labels.is_inside())
        try:
            compiled = call_user_compiler.__wrapped__(self, gm, *arguments, **more)
        except exc.BackendCompilerFailed as error:
            inner = getattr(error, "inner_exception", error)
            if not getattr(self.compiler_fn, "__module__", "torch").startswith("torch") or "OutOfMemory" in type(inner).__name__:
                raise
            code = self.root_tx.f_code
            why = f"{type(inner).__name__}: {(str(inner).strip().splitlines() or [''])[0]}"
            for failed in when_it_fails:
                failed(why)
            note(
                note=f"torch.compile: {code.co_filename}:{code.co_firstlineno} ({code.co_name}) was not compiled but ran eagerly, "
                f"because Inductor failed here: {why}"
            )
            compiled = gm.forward
        stepped = getattr(self, "_vramlab_stepped", None)
        return steps.around(stepped, compiled) if stepped else compiled

    @instead("call_function", functions.SkipFunctionVariable)
    def call_function(self, tx, args, kwargs):
        # An optimizer's step breaks the graph at our hooks; where no break may be, the whole graph counts as the step.
        if self.value in steps.hooks and getattr(tx, "one_graph", False):
            stepped = tx.output.__dict__.setdefault("_vramlab_stepped", [])
            if args[0].value not in stepped:
                stepped.append(args[0].value)
            return functions.ConstantVariable.create(None)
        return call_function.__wrapped__(self, tx, args, kwargs)

    # Around the graph of a backward pass under compiled autograd, whose inputs are lists. PyTorch calls that graph, which loses what its nodes came
    # from, where it interprets others (create_functional_call).
    def forward(self, *inputs):
        from torch.fx import traceback
        from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

        with traceback.preserve_node_meta():
            return PropagateUnbackedSymInts(self.gm).run(*self.unflatten_fn(list(inputs)))

    dynamo.utils.GmWrapper.forward = forward


# In a graph's stack traces, which Inductor keeps with the code that it writes, for the backward pass, too.
_MODULE = "vramlab module "


@guarded("modules of a compiled graph")
def _name_modules(graph, is_inside):
    for node in _nodes(graph):
        stack, trace = node.meta.get("nn_module_stack"), node.meta.get("stack_trace")
        if stack and trace:
            node.meta["stack_trace"] = f"{trace}{_MODULE}{_path(list(stack.values())[-1][0], is_inside)}\n"


def _nodes(graph):
    """Those of a graph and of the graphs in it; none where there is no graph."""
    return (node for part in (graph.modules() if graph is not None else ()) for node in getattr(getattr(part, "graph", None), "nodes", ()))


def _of_any_layer(trace):
    lines, *module = (trace or "").split(_MODULE)
    return lines, re.sub(r"\d+", "", "".join(module))


def _path(source, is_inside):
    """Of `L['self'].layers[0].mlp`, `L['self']._modules['layers']._modules['0']...` or the like: layers.0.mlp, from the module that is at work."""
    wrappers = r"\b(getattr|L|G|_modules|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\b"
    parts = re.findall(r"\w+", re.sub(wrappers, "", source))
    return ".".join(parts[1:] if is_inside else parts)


# ---- Inductor ----------------------------------------------------------------------------------------------------------------------------


def _set(module, **values):
    for name, value in values.items():
        setattr(module, name, value)


def _not_ahead_of_time(compile_fx):
    def compile_fx_aot(*_, **__):
        device.refused("AOTInductor")
        raise NotImplementedError(
            "The simulated GPU cannot run AOTInductor: it writes kernels as machine code into a package, and what that would load and allocate is "
            "not known. torch.compile is rehearsed"
        )

    compile_fx.compile_fx_aot = compile_fx_aot


def _keep_in(folder, utils):
    """The user's own caches get no graph whose kernels were never compiled."""

    def cache_dir():
        os.makedirs(folder, exist_ok=True)
        return folder

    utils.cache_dir = cache_dir
    utils.triton_cache_dir = lambda _: os.path.join(cache_dir(), "triton")


def _tell_lines(codecache):
    load = codecache.PyCodeCache.load_by_key_path

    @functools.wraps(load)
    def load_by_key_path(key, path, linemap=None, *arguments, **more):
        module = load(key, path, linemap, *arguments, **more)
        tell(path, linemap)
        return module

    @guarded("lines of a compiled graph")
    def tell(path, linemap):
        lines = []
        for number, trace in linemap or []:
            # Compiled autograd's own frame stands for a node whose forward pass was not compiled.
            frames = re.findall(r'File "(.+)", line (\d+), in (?!set_node_origin)(.+)\n', trace or "")
            found = re.search(f"{_MODULE}(.*)", trace or "")
            if frames:
                file, line, function = frames[-1]
                lines.append([number, file, int(line), function, found[1] if found else ""])
        if lines:
            note(generated=path, lines=lines)

    codecache.PyCodeCache.load_by_key_path = staticmethod(load_by_key_path)

    @instead("__init__", codecache.FxGraphHashDetails)
    def prepare(self, gm, *arguments, **more):
        prepare.__wrapped__(self, gm, *arguments, **more)
        # The lines are kept with the code. The same graph of other lines, as after an edit, is another one; that of another layer is not.
        self.traces = [_of_any_layer(node.meta.get("stack_trace")) for node in _nodes(gm)]

    codecache.torch_key = lambda: b"the folder is this version's"


# ---- kernels -----------------------------------------------------------------------------------------------------------------------------


class _Launcher:
    """What stands for a compiled kernel: it writes what nobody knows."""

    n_regs = shared = cache_hash = None
    # PyTorch 2.7's Inductor compares it before it times several configurations.
    n_spills = 0
    store_cubin = False

    def __init__(self, tuner, config):
        self.tuner = tuner
        self.config = config
        # One over many tensors (foreach) has no size of its own: Inductor names it so (torch/_inductor/codegen/triton.py).
        hints = () if tuner.fn.__name__.startswith("triton_for_") else tuner.size_hints or ()
        self.hinted = math.prod(hints.values() if isinstance(hints, dict) else hints) or math.inf

    @guarded("traffic of compiled kernels")
    def _traffic(self, arguments):
        """Bytes that a launch reads and writes: each tensor once, and twice what is changed in place."""
        changed = self.tuner.mutated_arg_names or ()
        named = list(zip(self.tuner.fn.arg_names, arguments))
        tensors = [(name, each) for name, each in named if getattr(each, "is_cuda", False)]
        # Of a table that is looked up in, only so many elements are read: those of this launch, where a graph serves several sizes.
        sizes = [each for name, each in named if name.endswith("numel") and type(each) is int]
        most = min(self.hinted, math.prod(sizes)) if sizes else self.hinted
        return sum(min(each.numel(), most) * each.element_size() * (1 + (name in changed)) for name, each in tensors)

    def __call__(self, *arguments, **_):
        tuner = self.tuner
        device.tell_kernel(tuner.fn.__name__, self._traffic(arguments) or 0.0)
        if tuner.custom_kernel:
            return device.lose(arguments)
        mutated = tuner.mutated_arg_names
        device.lose(value for name, value in zip(tuner.fn.arg_names, arguments) if "out_ptr" in name or name in mutated)


def _launch_nothing(heuristics):
    def precompile(self, *_, **__):
        # Several configurations are tuned at the first launch, for which Inductor copies what the kernel changes; which is best is not kept.
        self.save_cache_hook = None
        if not self.launchers:
            self.launchers = [_Launcher(self, config) for config in self.configs]

    heuristics.CachingAutotuner.precompile = precompile
    kinds = heuristics.HeuristicType
    fixed = [getattr(kinds, name, None) for name in ("TEMPLATE", "USER_AUTOTUNE", "FIXED")]

    def coordinate_descent_tuning(self, launcher, *arguments, **more):
        # Compiles neighbours of a configuration and times them, one after the other; all take the same memory.
        if self.heuristic_type not in fixed:
            self.bench(launcher, *arguments, **more)
        launcher.config.found_by_coordesc = True
        return launcher

    heuristics.CachingAutotuner.coordinate_descent_tuning = coordinate_descent_tuning


def _time_nothing(benchmarking):
    """What is timed runs twice, as it would the first time and beside the buffer that clears the cache of the GPU; all take as long."""

    def timing(size):
        def benchmark_gpu(self, function, *_, return_mode=None, **__):
            function()
            buffer = torch.empty(size(self), dtype=torch.int8, device="cuda")
            function()
            del buffer
            return [1.0] if return_mode == "all" else 1.0

        return benchmark_gpu

    # triton.testing.do_bench takes 256 MB.
    benchmarking.TritonBenchmarker.benchmark_gpu = timing(lambda _: 256_000_000)
    # Inductor has its own since 2.7.
    if hasattr(benchmarking, "InductorBenchmarker"):
        benchmarking.InductorBenchmarker.benchmark_gpu = timing(lambda self: self.L2_cache_size)


def _choose_the_first(select):
    @instead("__call__", select.AlgorithmSelectorCache)
    def choose(self, name, choices, *arguments, **more):
        # None is one that does not fit these sizes.
        choices = [choice for choice in choices if choice is not None]
        if len(choices) > 1:
            note(note="torch.compile: max-autotune would time kernels on the GPU; the first choice, mostly cuBLAS's or cuDNN's, was taken")
        return choose.__wrapped__(self, name, choices[:1], *arguments, **more)


def _pad(pad_mm):
    def padded(_):
        note(
            note="torch.compile: matrix products of sizes that tensor cores do not take whole were padded, as they mostly are where Inductor times both"
        )
        return True

    pad_mm.get_cached_should_pad = padded


def _no_driver(driver):
    """What Triton asks the driver for by a library that it compiles; the rest it asks PyTorch."""

    class Utils:
        @staticmethod
        def get_device_properties(index):
            properties = torch.cuda.get_device_properties(index)
            return dict(
                max_shared_mem=properties.shared_memory_per_block_optin,
                multiprocessor_count=properties.multi_processor_count,
                max_num_regs=properties.regs_per_multiprocessor,
                warpSize=properties.warp_size,
            )

    driver.CudaUtils = Utils
