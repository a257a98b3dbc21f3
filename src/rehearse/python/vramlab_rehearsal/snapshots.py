"""What `torch.cuda.memory._dump_snapshot` left of a GPU, as the trace of a process. Run alone: `python -I snapshots.py SNAPSHOT FOLDER`.

The history is a ring that may have begun late, so what was there before it is found backwards from what the snapshot holds in the end.
"""

import json
import os
import pickle
import struct
import sys

# As src/sim/src/trace.rs has it.
_EVENT = struct.Struct("<BBHIQqqqqQIIIIQ")
_KINDS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")
_TAKES, _GIVES = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


class _Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no snapshot has")


class _Names:
    """Frames and stacks by number."""

    def __init__(self, file):
        self.file, self.frames, self.stacks, self.seen = file, {}, {}, {}

    def say(self, **line):
        self.file.write(json.dumps(line) + "\n")

    def stack(self, frames):
        if not frames:
            return 0
        # One list is that of many events.
        known = self.seen.get(id(frames))
        if known is None:
            numbers = tuple(self._frame(each) for each in frames)
            known = self.stacks.get(numbers)
            if known is None:
                known = self.stacks[numbers] = len(self.stacks) + 1
                self.say(kind="stack", stack=known, frames=numbers)
            self.seen[id(frames)] = known
        return known

    def _frame(self, frame):
        key = frame["filename"], frame["line"], frame["name"]
        number = self.frames.get(key)
        if number is None:
            number = self.frames[key] = len(self.frames) + 1
            self.say(kind="frame", frame=number, file=key[0], line=key[1], function=key[2])
        return number


def _rounded(size):
    return max(-(-size // 512) * 512, 512)


def _before(actions, segments):
    """Segments and blocks that were there before the history: addresses with their sizes, streams and frames, as far as those are known."""
    memory = {each["address"]: (each["total_size"], each["stream"], each.get("frames")) for each in segments}
    blocks = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active"):
                blocks[block.get("address", address)] = block.get("requested_size", block["size"]), segment["stream"], block.get("frames"), block["size"]
            address += block["size"]
    ends = dict(blocks)
    for action in reversed(actions):
        kind, address = action["action"], action.get("addr")
        if kind == "alloc":
            blocks.pop(address, None)
        elif kind == "free_completed":
            blocks[address] = action["size"], action["stream"], None, _rounded(action["size"])
        elif kind in _TAKES:
            memory = _without(memory, address, action["size"])
        elif kind in _GIVES:
            memory[address] = action["size"], action["stream"], None
    return memory, blocks, ends


def _without(memory, address, size):
    """Expandable segments are one range in the end, and were mapped in pieces."""
    if address in memory and memory[address][0] == size:
        del memory[address]
        return memory
    kept = {}
    for at, (length, *rest) in memory.items():
        for begin, end in ((at, min(at + length, address)), (max(at, address + size), at + length)):
            if begin < end:
                kept[begin] = (end - begin, *rest)
    return kept


def main(path, folder):
    with open(path, "rb") as file:
        snapshot = _Plain(file).load()
    if not isinstance(snapshot, dict) or "segments" not in snapshot:
        sys.exit("it has no segments, so it is no snapshot of PyTorch's allocator")
    traces = snapshot.get("device_traces") or []
    if not any(traces):
        sys.exit("it has no history: call torch.cuda.memory._record_memory_history() before what is to be seen")
    settings = snapshot.get("allocator_settings") or {}
    conf = settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF") or None
    os.mkdir(folder)
    about = []
    with open(os.path.join(folder, "names"), "w") as lines, open(os.path.join(folder, "events"), "wb") as events:
        names = _Names(lines)
        names.say(kind="process", process=1, parent=0, arguments=[], executable="", python="", torch="", cuda=None, rank=None, version=1, alloc_conf=conf)
        events.write(b"VLTRACE1" + struct.pack("<II", _EVENT.size, 1) + bytes(48))
        for device, actions in enumerate(traces):
            segments = [each for each in snapshot["segments"] if each["device"] == device]
            if actions or segments:
                about.append({"device": device, **_write(device, actions, segments, names, events)})
        names.say(kind="device", device="GPU", devices=len(traces), cards=list(range(len(traces))))
    print(json.dumps(about))


def _write(device, actions, segments, names, events):
    def write(kind, address, size, rounded, stream, frames):
        events.write(_EVENT.pack(_KINDS.index(kind) + 1, 0, device, 0, address, size, rounded, 0, 0, stream, names.stack(frames), 0, 0, 0, 0))

    memory, blocks, ends = _before(actions, segments)
    for address, (size, stream, frames) in sorted(memory.items()):
        write("segment_alloc", address, size, size, stream, frames)
    for address, (size, stream, frames, rounded) in sorted(blocks.items()):
        write("alloc", address, size, rounded, stream, frames)
    live, failed = {address: rounded for address, (*_, rounded) in blocks.items()}, []
    for action in actions:
        kind, address, size, stream, frames = (action.get(name) for name in ("action", "addr", "size", "stream", "frames"))
        if kind == "oom":
            failed.append({"bytes": size, "free": action.get("device_free", address) or 0})
        if kind not in _KINDS:
            continue
        rounded = size
        if kind == "alloc":
            # Of one that is there in the end the snapshot says what it has.
            end = ends.get(address)
            rounded = live[address] = end[3] if end and end[0] == size else _rounded(size)
        elif kind == "free_requested":
            live.pop(address, None)
        elif kind == "free_completed" and live.pop(address, None):
            write("free_requested", address, size, size, stream or 0, frames)
        if kind == "free_completed":
            rounded = 0
        write(kind, address, size, rounded, stream or 0, frames)
    return {"events": len(actions), "before": sum(rounded for *_, rounded in blocks.values()), "failed": failed}


if __name__ == "__main__":
    main(*sys.argv[1:])
