"""Names of arguments that our stand-ins do not take as the functions do for which they stand: a call by names would fail."""

import contextlib
import gc
import inspect
import types

import torch
import torch.distributed.checkpoint
import torch.distributed.pipelining
import torch.multiprocessing

for package in ("safetensors.torch", "transformers.generation.utils", "transformers.trainer", "huggingface_hub.file_download"):
    with contextlib.suppress(ImportError):
        __import__(package)
# The compiler's are put in place when it is loaded.
torch.compile(torch.nn.Linear(8, 8).cuda())(torch.ones(8, 8, device="cuda"))

looked = 0
for each in gc.get_objects():
    if type(each) is not types.FunctionType or "vramlab_rehearsal" not in each.__code__.co_filename:
        continue
    original = vars(each).get("__wrapped__")
    # Not those that a function of ours is put around.
    if original is None or "vramlab_rehearsal" in getattr(getattr(original, "__code__", None), "co_filename", ""):
        continue
    code, looked = each.__code__, looked + 1
    ours = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        theirs = inspect.signature(original).parameters.values()
    except ValueError:
        # Those of C++ have none.
        continue
    names = [each.name for each in theirs if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    missing = [name for name in names if name not in ours and not takes_any]
    # What ours must be given, and nobody gives by that name.
    wanted = [name for name in ours[: code.co_argcount - len(each.__defaults__ or ())] if name not in names and name != "self"]
    if missing or wanted:
        print(f"{each.__qualname__} ({code.co_filename}:{code.co_firstlineno}) lacks {missing} and wants {wanted}")
print("looked at", looked)
