"""CUDA extensions that a program compiles as it runs, as DeepSpeed its optimizers: without a CUDA toolkit something stands for them."""

import types

from . import device, imports
from .guard import instead
from .notes import note


def follow():
    imports.when_imported("torch.utils.cpp_extension", _watch)


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


def _stand_in(name):
    note(
        note=f"{name}: its kernels would be compiled at run time, and there is no CUDA toolkit (nvcc) here. They are taken to allocate nothing, "
        "and to read and write once what they are given"
    )
    return _Extension(name)


def _tensors(arguments):
    from torch.utils import _pytree as pytree

    return [each for each in pytree.tree_leaves(arguments) if hasattr(each, "is_cuda")]


class _Extension(types.ModuleType):
    def __getattr__(self, function):
        if function.startswith("__"):
            raise AttributeError(function)

        def launch(*arguments, **more):
            given = _tensors((arguments, more))
            on_card = [tensor for tensor in given if tensor.is_cuda]
            if on_card:
                device.lose(on_card)
                device.tell_kernel(f"{self.__name__}::{function}", 2.0 * sum(tensor.nbytes for tensor in on_card))
            elif given:
                note(note=f"{self.__name__}.{function} works on the host, and was not compiled: what it takes there is in no time")
            return _Unknown(f"{self.__name__}.{function}")

        return launch


class _Unknown:
    """What a function gives back that was not compiled: most write into what they are given, and nobody looks at it."""

    def __init__(self, function):
        self.function = function

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            f"vramlab rehearse: {self.__dict__['function']} was not compiled, since there is no CUDA toolkit (nvcc) here, and what it gives back is not known"
        )
