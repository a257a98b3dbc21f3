"""What a script does after the steps of a rehearsal: branches on the step that none of them took, and lines below the loop that they were made in. Told from
the frames of Python's stack when the script is stopped, and from the source of their files; nothing of the script's is called."""

import ast
import itertools
import math
import operator
import traceback
import types

# Calls whose names have one of these keep, show or average a number.
HARMLESS = """log print write plot meter metric score accuracy scalar track report record save dump info debug warn error postfix description append extend
add update item float int str round format isnan isfinite isinf exp sqrt mean std sum step reduce numpy cpu tolist detach len min max abs clip clamp
median percentile math synchronize time exit zip enumerate sorted dict list tuple backward scale unscale zero_grad array get bool isinstance
item join items values keys square pow norm stack cat callback flush close set_ perplexity wait barrier copyfile state_dict""".split()
# Values of a counter that are tried in a branch's condition, and deepest attributes.
MOST_VALUES, MOST_DEPTH = 64, 4
# Calls that take no memory of the GPU, beside those that are there for numbers: of these names, or of these modules.
_OF_THE_HOST = {"destroy_process_group", "empty_cache", "makedirs", "mkdir", "open", "remove", "sleep", "unlink"}
_OF_THE_HOST |= {"csv", "datetime", "gc", "json", "logging", "mlflow", "plt", "shutil", "sys", "time", "wandb"}
# So many elements of a list are looked at.
MOST_ITEMS = 1 << 20
# Functions of libraries that make steps, by parts of their names.
_TRAINS = ("train", "fit", "loop", "run", "epoch", "learn")


def _name_of(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_harmless(name):
    return any(part in name.lower() for part in HARMLESS) and not name.startswith("load")


def of_frames(frame, is_own, parsed, is_trained):
    """What comes later: of each its text, file and line. `parsed` gives a file's tree, or None, and `is_trained` whether an object is trained now."""
    found, has_looped, is_made, has_swept = [], False, False, False
    for frame, line in traceback.walk_stack(frame):
        file = frame.f_code.co_filename
        if file.endswith("/vramlab_rehearsal/pools.py"):
            # What goes through tasks comes to the next.
            break
        # The loop that a lambda is written in is the one of another frame.
        if is_own(file) and frame.f_code.co_name != "<lambda>":
            tree = parsed(file)
            if tree is not None:
                values = _Values(frame)
                has_looped = _of_frame(tree, line, values, has_looped, lambda node, what: found.append((what, file, node.lineno)))
                for call in (node for loop in values.loops for node in ast.walk(loop) if isinstance(node, ast.Call)):
                    for node, what, file_of in _in_callee(call, values, is_own, parsed):
                        found.append((what, file_of, node.lineno))
                loop = None if has_swept else _sweep(values, is_trained, is_made)
                if loop is not None:
                    has_swept = True
                    found.append((f"{_text(loop)} each round has a training of its own", file, loop.lineno))
                is_made = is_made or _makes(_function(tree, frame.f_code.co_name, line), values, is_trained)
        elif "/site-packages/" in file and "/site-packages/torch/" not in file:
            has_looped = has_looped or any(part in frame.f_code.co_name.lower() for part in _TRAINS)
    return found


def _function(tree, name, line):
    """The statements of the function of a name that a line is in."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name and node.lineno <= line <= node.end_lineno]
    return found[-1].body if found else []


def _makes(statements, values, is_trained):
    """Whether some of them make what is trained, whatever else is."""
    for node in statements:
        if isinstance(node, (ast.With, ast.Try)):
            if _makes(node.body, values, is_trained):
                return True
        elif isinstance(node, ast.Assign) and any(isinstance(part, ast.Call) for part in ast.walk(node.value)):
            names = (part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name))
            if any(name not in values.given and is_trained(values.names.get(name)) for name in names):
                return True
    return False


def _sweep(values, is_trained, is_made):
    """The innermost loop that goes on, and makes what is trained anew in each round: itself, or by the function that it calls."""
    loops = (loop for loop in values.loops if isinstance(loop, ast.For) and (is_made or _makes(loop.body, values, is_trained)))
    return next((loop for loop in loops if values.has_several(loop.iter)), None)


def _branches(tree, values, matters):
    """Branches that no value of a counter took so far."""
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)) and id(node) not in seen:
            taken = values.outcomes(node.test)
            for way, body in ((True, node.body), (False, node.orelse)):
                body = body if isinstance(body, list) else [body]
                if taken and way not in taken and any(matters(each) or isinstance(node, ast.IfExp) for each in body):
                    condition = f"{'if' if way else 'else of if'} {_text(node.test)}: {_text(body[0])}"
                    yield node, _text(node) if isinstance(node, ast.IfExp) else condition
                    seen.update(map(id, ast.walk(node)))


def _in_callee(call, values, is_own, parsed):
    """Those of a function of the script's that a loop calls with its counter, where they multiply a whole number, as a schedule does a batch."""
    function, owner = values.function(call.func)
    if function is None or not is_own(function.__code__.co_filename):
        return
    code, given = function.__code__, [*([owner] if owner is not None else []), *call.args]
    tree = parsed(code.co_filename)
    bodies = [node for node in ast.walk(tree or ast.Pass()) if isinstance(node, ast.FunctionDef) and node.lineno <= code.co_firstlineno + len(node.decorator_list)]
    body = next((node for node in bodies if node.name == code.co_name and node.end_lineno >= code.co_firstlineno), None)
    inside = values.of_callee(function, dict(zip(code.co_varnames[: code.co_argcount], given)))
    for node, what in _branches(body, inside, inside.multiplies) if body is not None and inside.counters else ():
        yield node, what, code.co_filename


def _of_frame(tree, line, values, has_looped, tell):
    path = _path_to(tree, line)
    values.loops = loops = [node for node, _ in path if isinstance(node, (ast.For, ast.While))]
    for loop in loops:
        values.counts(loop)
    # Branches anywhere in the outermost loop, which has been gone through, by counters of the loops.
    for node, what in _branches(loops[-1], values, lambda node: _matters(node) or values.multiplies(node)) if loops else ():
        tell(node, what)
    for node in ast.walk(loops[-1]) if loops else ():
        # What the loop goes through, by an index that counts or one after the other.
        grows = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            grows = values.grows(node.value, node.slice)
        elif node in loops and isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            grows = values.grows(node.iter, node.target)
        if grows:
            tell(node, f"{_text(node).removesuffix(':')}: further on, {grows}")
            break
    # What follows the loop, unless a loop around it has come by there.
    following = []
    for node, after in path:
        if isinstance(node, (ast.For, ast.While)):
            if has_looped and values.has_come_again(node):
                following = []
            has_looped = True
        if has_looped:
            following += [each for each in after if not _is_definition(each)]
    for node in following:
        if _matters(node):
            tell(node, _text(node))
            break
    return has_looped


def is_endless(frame, is_own, parsed):
    """Whether a loop of the script's goes on for ever; None where a condition within it may end it."""
    found = False
    for frame, line in traceback.walk_stack(frame):
        tree = parsed(frame.f_code.co_filename) if is_own(frame.f_code.co_filename) else None
        for node, _ in _path_to(tree, line) if tree is not None else ():
            counts = isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _name_of(node.iter) in ("count", "cycle", "repeat")
            if not (counts or isinstance(node, ast.While)):
                continue
            is_whole = counts or isinstance(node.test, ast.Constant) and bool(node.test.value)
            if is_whole and not any(isinstance(each, (ast.Break, ast.Return, ast.Raise)) for each in ast.walk(node)):
                return True
            found = None
    return found


def _path_to(tree, line):
    """Statements around a line, innermost first, each with those that follow it in its block; within the innermost function."""
    path, block = [], tree.body
    while block:
        # Of several on a line the last: those before it may be done.
        at = max((i for i, node in enumerate(block) if node.lineno <= line <= node.end_lineno), default=None)
        if at is None:
            break
        node = block[at]
        if _is_definition(node):
            path = []
        else:
            path.append((node, block[at + 1 :]))
        blocks = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")] + [each.body for each in getattr(node, "handlers", ())]
        block = next((each for each in blocks if each and each[0].lineno <= line <= each[-1].end_lineno), None)
    return path[::-1]


def _is_definition(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _matters(node):
    """Whether it may take memory: calls something that is not there for numbers, or has parameters be trained."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and not _is_harmless(_name_of(part)) and not {_name_of(part), _root(part)} & _OF_THE_HOST:
            return True
        if isinstance(part, ast.Attribute) and part.attr == "requires_grad" and isinstance(part.ctx, ast.Store):
            return True
    return False


def _root(call):
    """`json` of `json.loads(...)`, `open` of `open(...).read()`."""
    owner = call
    while isinstance(owner, (ast.Attribute, ast.Call)):
        owner = owner.value if isinstance(owner, ast.Attribute) else owner.func
    return getattr(owner, "id", "")


def _text(node):
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) < 70 else text[:67] + "..."


def _size(item):
    """A whole number's value, and how many there are in others, without asking code of the script's."""
    kind = type(item)
    if kind in (int, str, bytes, list, tuple, dict, set):
        return item if kind is int else len(item)
    if kind.__module__.split(".")[0] in ("torch", "numpy"):
        return math.prod(item.shape)
    raise ValueError(kind)


class _Values:
    """What names of a frame are, as far as that takes no code of the script's; counters have had all values up to theirs."""

    def __init__(self, frame):
        self.names = {**frame.f_globals, **frame.f_locals} if frame is not None else {}
        self.given = frame.f_code.co_varnames[: frame.f_code.co_argcount] if frame is not None else ()
        self.counters = {}
        self.loops = []

    def function(self, called):
        """What a call calls, where that is a function of Python's: with the object whose method it is, or None."""
        try:
            if isinstance(called, ast.Name):
                found, owner = self.names[called.id], None
            else:
                owner = self.names[called.value.id]
                found = next(vars(kind)[called.attr] for kind in type(owner).__mro__ if called.attr in vars(kind))
        except (AttributeError, KeyError, StopIteration):
            return None, None
        return (found, owner) if isinstance(found, types.FunctionType) else (None, None)

    def of_callee(self, function, given):
        """Within a function that is given these: nodes of a call, and the object whose method it is."""
        inside = _Values(None)
        inside.names = {**function.__globals__, **{name: value for name, value in given.items() if not isinstance(value, ast.AST)}}
        for name, node in given.items():
            if isinstance(node, ast.Name) and node.id in self.counters:
                inside.counters[name] = self.counters[node.id]
        return inside

    def multiplies(self, node):
        """Whether it makes a whole number a multiple of itself."""
        if not (isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Mult, ast.LShift, ast.Pow))):
            return False
        try:
            return type(self.names[node.target.id] if isinstance(node.target, ast.Name) else self._attribute(node.target, MOST_DEPTH)) is int
        except (AttributeError, LookupError, TypeError, ValueError):
            return False

    def counts(self, loop):
        for node in ast.walk(loop):
            names = ast.walk(node.target) if isinstance(node, (ast.For, ast.AugAssign)) else ()
            for name in names:
                value = self.names.get(name.id) if isinstance(name, ast.Name) else None
                if type(value) is int:
                    self.counters[name.id] = range(min(value, 0), value + 1)[-MOST_VALUES:]

    def has_come_again(self, loop):
        values = [self.names.get(name.id) for name in ast.walk(getattr(loop, "target", None) or ast.Pass()) if isinstance(name, ast.Name)]
        return any(type(value) is int and value > 0 for value in values)

    def has_several(self, of):
        """Whether a loop may have more than one round."""
        try:
            if isinstance(of, (ast.Tuple, ast.List)):
                return len(of.elts) > 1
            if isinstance(of, ast.Call) and _name_of(of) == "range":
                return len(range(*(self._of(each, {}) for each in of.args))) > 1
            items = self.names[of.id] if isinstance(of, ast.Name) else None
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return True
        return type(items) not in (list, tuple) or len(items) > 1

    def outcomes(self, test):
        """Truths that a condition has had; none where it has no counter, or is not known."""
        names = sorted({node.id for node in ast.walk(test) if isinstance(node, ast.Name) and node.id in self.counters})
        if not names:
            return set()
        try:
            sets = itertools.islice(itertools.product(*(self.counters[name] for name in names)), MOST_VALUES * MOST_VALUES)
            return {bool(self._of(test, dict(zip(names, values)))) for values in sets}
        except (ArithmeticError, TypeError, ValueError, LookupError):
            return set()

    def grows(self, of, index):
        """How much larger a list is further on: its numbers, or the lengths of what is in it, beside those that an index or a loop has come to."""
        try:
            items = self.names[of.id] if isinstance(of, ast.Name) else None
            if type(items) not in (list, tuple):
                return None
            if isinstance(index, ast.Name) and not isinstance(index.ctx, ast.Load):
                now = self.names[index.id]
                end = next((at for at, item in enumerate(items) if item is now), len(items)) + 1
            else:
                counts = {node.id for node in ast.walk(index) if isinstance(node, ast.Name)} & set(self.counters)
                last = index.upper if isinstance(index, ast.Slice) else index
                if not counts or last is None:
                    return None
                end = self._of(last, {name: self.counters[name][-1] for name in counts}) + (not isinstance(index, ast.Slice))
            sizes = [_size(item) for item in items[:MOST_ITEMS]]
            before, after = max(sizes[:end]), max(sizes[end:], default=0)
        except (ArithmeticError, TypeError, ValueError, LookupError):
            return None
        return f"{after} where it was {before} at most" if after > before > 0 else None

    def _of(self, node, counters):
        def of(each):
            return self._of(each, counters)

        if isinstance(node, ast.Constant):
            return self._plain(node.value)
        if isinstance(node, ast.Name):
            return self._plain(counters[node.id] if node.id in counters else self.names[node.id])
        if isinstance(node, ast.Attribute):
            return self._plain(self._attribute(node, MOST_DEPTH))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            return not of(node.operand) if isinstance(node.op, ast.Not) else -of(node.operand)
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(of(each) for each in node.values)
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Compare):
            sides = [of(each) for each in (node.left, *node.comparators)]
            return all(_OPERATORS[type(by)](a, b) for by, a, b in zip(node.ops, sides, sides[1:]))
        raise ValueError(node)

    def _attribute(self, node, depth):
        owner = node.value
        if isinstance(owner, ast.Attribute) and depth:
            owner = self._attribute(owner, depth - 1)
        elif isinstance(owner, ast.Name):
            owner = self.names[owner.id]
        else:
            raise ValueError(node)
        # Not a property, which would be code of the script's.
        return object.__getattribute__(owner, "__dict__")[node.attr]

    @staticmethod
    def _plain(value):
        if type(value) not in (int, float, bool, type(None)):
            raise ValueError(value)
        return value


# Those that there are here: others are not known.
_NAMES = dict(
    Add="add", Sub="sub", Mult="mul", Mod="mod", FloorDiv="floordiv", Div="truediv",
    Eq="eq", NotEq="ne", Lt="lt", LtE="le", Gt="gt", GtE="ge", Is="is_", IsNot="is_not",
)  # fmt: skip
_OPERATORS = {getattr(ast, kind): getattr(operator, name) for kind, name in _NAMES.items()}
