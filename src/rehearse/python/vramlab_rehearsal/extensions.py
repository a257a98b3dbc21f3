"""CUDA kernels that a program compiles as it runs, as DeepSpeed its optimizers and FlashInfer its attention: without a toolkit something stands for them."""

import functools
import os
import shutil
import types

from . import device, imports, passes
from .guard import instead
from .notes import note

# What loads a library of kernels that it has compiled, by module and class.
_LOADERS = (
    ("FlashInfer", "flashinfer.jit.core", "JitSpec", "build_and_load"),
    ("SGLang", "sglang.kernels.jit.utils.compile.loader", None, "load_jit"),
    ("SGLang", "sglang.jit_kernel.utils", None, "load_jit"),
)


def follow():
    imports.when_imported("torch.utils.cpp_extension", _watch)
    imports.when_imported("cutlass.base_dsl.dsl", _watch_cute)
    imports.when_imported("deep_gemm.cuda_helpers", _watch_deep_gemm)
    for package, module, owner, name in _LOADERS:
        imports.when_imported(module, functools.partial(_watch_loader, package, owner, name))


def has_toolkit():
    return bool(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc") or os.path.exists("/usr/local/cuda"))


def _watch_loader(package, owner, name, module):
    @instead(name, getattr(module, owner) if owner else module)
    def load(first, *arguments, **more):
        if has_toolkit():
            return load.__wrapped__(first, *arguments, **more)
        # Of a package that has it compiled there is nothing to compile.
        compiled = first.try_load() if hasattr(first, "try_load") else None
        return compiled or _stand_in(f"{package} {getattr(first, 'name', first)}", f"{package}'s kernels", _NO_TOOLKIT)


def _watch_deep_gemm(module):
    """It asks where the toolkit is when it is imported, whether it will compile anything or not."""
    if not has_toolkit():
        module.find_cuda_home = lambda: "/usr/local/cuda"


def _watch_cute(module):
    """Kernels in CUTLASS's Python, whose launches are the driver's, by a CUDA runtime of its own."""

    @instead("_func", module.BaseDSL)
    def run(self, function, *arguments, compile_only=False, **more):
        kernels = _stand_in("CuTe", "kernels in CUTLASS's Python", "would be compiled at run time, by what brings a CUDA runtime of its own")
        launch = getattr(kernels, getattr(function, "__qualname__", "kernel"))
        return launch if compile_only else launch(*arguments, **more)


def _watch(module):
    @instead("load", module)
    def load(name, sources, *arguments, **more):
        # As PyTorch decides it. Where there is a toolkit, or the sources are the CPU's, they are compiled as ever.
        files = [sources] if isinstance(sources, str) else sources
        has_kernels = more.get("with_cuda")
        if has_kernels is None:
            has_kernels = any(str(file).endswith((".cu", ".cuh")) for file in files)
        return _stand_in(name) if has_kernels and module.CUDA_HOME is None else load.__wrapped__(name, sources, *arguments, **more)

    @instead("load_inline", module)
    def load_inline(name, cpp_sources, cuda_sources=None, *arguments, **more):
        has_kernels = cuda_sources or more.get("with_cuda")
        return _stand_in(name) if has_kernels and module.CUDA_HOME is None else load_inline.__wrapped__(name, cpp_sources, cuda_sources, *arguments, **more)


_NO_TOOLKIT = "would be compiled at run time, and there is no CUDA toolkit (nvcc) here"


def _stand_in(name, kernels=None, why=_NO_TOOLKIT):
    _tell(kernels or f"{name}: its kernels", why)
    return _Extension(name)


@functools.cache
def _tell(kernels, why):
    note(note=f"{kernels} {why}. They are taken to allocate nothing, and to read and write once what they are given")


def _tensors(arguments):
    from torch import Tensor
    from torch.utils import _pytree as pytree

    return [each for each in pytree.tree_leaves(arguments) if isinstance(each, Tensor)]


def _is_read(tensor):
    """Whether they are numbers of tokens and the like, which a kernel is given to read: what it is to write has zeros or nothing."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() > 1 << 14:
        return False
    found = device.values(tensor)
    return found is not None and bool(found.any())


def _traffic(tensors):
    """Each once read and once written, but keys and values of all requests, of which attention reads a few, and the bytes that it has to work in."""
    counted = [each for each in tensors if not passes.is_of_a_pool(each)]
    typed = [each for each in counted if each.is_floating_point() or each.element_size() > 1]
    return 2.0 * sum(each.nbytes for each in typed or counted)


class _Extension(types.ModuleType):
    def __getattr__(self, function):
        if function.startswith("__"):
            raise AttributeError(function)

        def launch(*arguments, **more):
            given = _tensors((arguments, more))
            on_card = [tensor for tensor in given if tensor.is_cuda]
            if on_card:
                device.lose(tensor for tensor in on_card if not _is_read(tensor))
                device.tell_kernel(f"{self.__name__}::{function}", _traffic(on_card))
            elif given:
                note(note=f"{self.__name__}.{function} works on the host, and was not compiled: what it takes there is in no time")
            named = f"{self.__name__}.{function}"
            # Whoever wants another type names this one.
            return type(f"what {named} gives back, which was not compiled for want of nvcc", (_Unknown,), {})(named)

        return launch


class _Unknown:
    """What a function gives back that was not compiled: most write into what they are given, and nobody looks at it."""

    def __init__(self, function):
        self.function = function

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._is_looked_at()

    def __bool__(self):
        return True

    def _is_looked_at(self, *_):
        raise RuntimeError(
            f"vramlab rehearse: {self.__dict__['function']} was not compiled, since there is no CUDA toolkit (nvcc) here, and what it gives back is not known"
        )

    # As a number, or as several.
    __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = _is_looked_at
