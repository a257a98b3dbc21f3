"""Where ranks meet: those that are all there, as torchrun starts them, by a store; those that are rehearsed one after the other by files."""

import atexit
import contextlib
import os
import pickle
import time

from .guard import guarded
from .notes import note
from .session import SESSION, settings

# The backend of a process group that moves nothing.
BACKEND = "vramlab"
# How many sends and receives of those that go together there have been; none where each goes alone.
together = [None]
# Of ranks that are all there, as torchrun starts them: the store in which they meet.
_others = None


def is_ours(group=None):
    from torch import distributed

    # PyTorch says so to who is no member.
    return group is not distributed.GroupMember.NON_GROUP_MEMBER and distributed.get_backend.__wrapped__(group) == BACKEND


def are_there():
    return _others is not None


def met(distributed, init_method, size, rank, store, timeout):
    """The store that a launcher has for its ranks, or that the script gives; None where they do not meet."""
    global _others
    try:
        if store is None:
            store, _, _ = next(distributed.rendezvous(init_method or "env://", rank, size, **({"timeout": timeout} if timeout else {})))
    except Exception as error:
        note(note=f"the ranks did not meet ({error}): none waits for another")
        return None
    _others = distributed.PrefixStore("vramlab", store)
    # Who waits for a rank that has ended waits no more.
    atexit.register(_leave, _others)
    return store


@guarded("the end of a rank")
def _leave(store):
    # Its keeper may have ended.
    with contextlib.suppress(RuntimeError):
        store.add("ended", 1)


_meetings = {}


def wait_for_all(name, size):
    """Until all ranks of the group have come here as often as this one, or one has ended."""
    if _others is None:
        return
    key = f"{name}/{turn(name)}"
    with contextlib.suppress(RuntimeError):
        _others.add(key, 1)
        _wait_until(lambda: _others.add(key, 0) >= size)


def turn(name):
    """How often this rank has come here."""
    _meetings[name] = _meetings.get(name, 0) + 1
    return _meetings[name]


def _wait_until(is_there):
    """False where a rank has ended before."""
    pause = 0.001
    while not is_there():
        if _others.add("ended", 0):
            # What it gave before it ended came after the look above.
            return is_there()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return True


def sent(name, rank, mine, theirs, at=None):
    """Objects by the store, which are real: gives `mine` to the others, and back what the ranks `theirs` gave; nothing of one that has ended."""
    place, found = f"{name}/{at or turn(name)}", {}
    with contextlib.suppress(RuntimeError):
        if mine is not None:
            _others.set(f"{place}/{rank}", pickle.dumps(mine[0]))
        for other in theirs:
            if not _wait_until(lambda: _others.check([f"{place}/{other}"])):
                break
            found[other] = pickle.loads(_others.get(f"{place}/{other}"))
    return found


# What this rank sent another, by the number of the sending.
_own = {}


def keep(what, source, target, objects):
    """For ranks that are rehearsed after this one, and for what it asks back itself."""
    at = turn((what, source, target))
    _own[what, source, target, at] = objects
    if settings.sent is not None:
        with open(os.path.join(settings.sent, f"{what}.{at}.{source}.{target}"), "wb") as file:
            pickle.dump(objects, file)


def kept(what, source, target):
    """What `source` sent; where it was not rehearsed, what the nearest rank that was sent one as far away. If none has, what this rank sent `source` as
    its own of that number: a gradient has the shape of what it is a gradient of. None if that is nothing, too. A rank that is rehearsed alone asks for the
    first one's rehearsal, and begins anew."""
    from torch.distributed import get_world_size

    at = turn((what, source, target))
    if settings.sent is None and settings.rank and source is not None:
        open(os.path.join(SESSION, "wanted"), "w").close()
        os._exit(0)
    # A receiver that names no source cannot be told whose it would get.
    names = [] if settings.sent is None or source is None else os.listdir(settings.sent)
    pairs = [tuple(map(int, name.split(".")[2:])) for name in names if name.startswith(f"{what}.{at}.")]
    # On a ring, as stages that are interleaved lie: from the last to the first is one on.
    pairs = [(sender, to) for sender, to in pairs if (to - sender - target + source) % get_world_size() == 0]
    if not pairs:
        own = _own.get((what, target, source, at)) if source != target else None
        if own is not None:
            note(note=f"rank {source} was not rehearsed before: what it sends rank {target} is taken to be what rank {target} sent it")
        return own
    sender, to = min(pairs, key=lambda pair: (pair != (source, target), abs(pair[0] - source)))
    if (sender, to) != (source, target):
        whom = "its group" if source == target else f"rank {target}"
        theirs = "its own" if source == target else f"rank {to}"
        note(note=f"rank {source} was not rehearsed before: what it sends {whom} is taken to be what rank {sender} sent {theirs}")
    with open(os.path.join(settings.sent, f"{what}.{at}.{sender}.{to}"), "rb") as file:
        return pickle.load(file)


def told(what, members, root, mine):
    """What the root of a group gives all of it, `mine` being a function that says it there; groups of as many ranks as far apart are of one kind."""
    from torch.distributed import get_rank

    if len(members) < 2:
        return None
    kind, source = f"{what}-{len(members)}-{members[1] - members[0]}-{root}", members[root]
    if get_rank() != source:
        return kept(kind, source, source)
    keep(kind, source, source, mine() if settings.sent is not None else None)
