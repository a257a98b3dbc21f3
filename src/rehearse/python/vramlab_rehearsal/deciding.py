"""Whether a value that a line reads can decide where the script goes, or a size; or is only logged, counted and averaged. Asked after a rehearsal, in a
Python of its own, without PyTorch: it reads [[[FILE, LINE], ...], ...], of each read the lines that led there, innermost first, and writes as many
truths. In doubt it can."""

import ast
import json
import sys

# Calls whose names have one of these keep, show or average a number.
HARMLESS = """log print write plot meter metric score accuracy scalar track report record save dump info debug warn error postfix description append extend
add update item float int str round format isnan isfinite isinf exp sqrt mean std sum step reduce numpy cpu tolist detach len min max abs clip clamp
median percentile math synchronize time exit zip enumerate sorted dict list tuple backward scale unscale zero_grad array get bool isinstance
item join items values keys square pow norm stack cat callback flush close set_ perplexity wait barrier copyfile state_dict""".split()
# Methods that put a value out, which is not read from their object again.
PUT_OUT = ("write", "writelines", "print", "log", "debug", "info", "warning")


def name_of(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_harmless(name):
    return any(part in name.lower() for part in HARMLESS) and not name.startswith("load")


def _asks_validity(test):
    """Whether numbers are finite, which they are."""
    calls = {name_of(node) for node in ast.walk(test) if isinstance(node, ast.Call)}
    return not any(isinstance(node, ast.Compare) for node in ast.walk(test)) and bool(calls & {"isnan", "isinf", "isfinite"})


def _reads(node):
    return any(isinstance(part, ast.Call) and name_of(part) in ("item", "tolist", "cpu", "numpy", "int", "float", "bool") for part in ast.walk(node))


class _Source:
    def __init__(self, text):
        self.tree = ast.parse(text)
        # Functions by name, and methods.
        self.scope, self.functions, self.methods, self.tainted, self.modules = {}, {}, {}, set(), set()
        # Of a list that values are only appended to, whatever they are, its length says nothing of them: names of all else, and what each node is under.
        self.valued, self.under = set(), {}
        self._enter(self.tree, None)

    def _enter(self, node, scope, is_method=False, under=None):
        self.scope[node], self.under[node] = scope, under
        under = node if isinstance(node, (ast.If, ast.While, ast.IfExp)) else under
        if isinstance(node, ast.Import) or isinstance(node, ast.ImportFrom) and node.module == "torch":
            self.modules.update((each.asname or each.name).split(".")[0] for each in node.names)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            (self.methods if is_method else self.functions)[node.name] = node
            scope = node
        for child in ast.iter_child_nodes(node):
            self._enter(child, scope, isinstance(node, ast.ClassDef), under)

    def _own(self, call):
        """The function of this file that a call may be of."""
        return (self.functions if isinstance(call.func, ast.Name) else self.methods).get(name_of(call))

    def decides(self, line):
        """Whether it decides, and whether it is given back to who called. The value that the statement at a line reads goes into names, and from those
        into others, until none is new."""
        statements = [node for node in self.scope if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
        least = min((node.end_lineno - node.lineno for node in statements), default=None)
        # Several may stand on one line.
        read = [node for node in statements if node.end_lineno - node.lineno == least]
        if not read or any(self._branches(node, lambda _: True) for node in read):
            return True, False
        self.tainted, self.valued = set(), set()
        for node in read:
            self._spread(node)
            for part in ast.walk(node):
                if self._shapes(part, _reads):
                    return True, False
                if isinstance(part, ast.comprehension) and _reads(part.iter):
                    self._taint(part.target, part)
        size = -1
        while len(self.tainted) + len(self.valued) != size:
            size = len(self.tainted) + len(self.valued)
            for node in self.scope:
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)) and self._has(node.value):
                    self._spread(node)
                elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and self._has(node.iter):
                    self._taint(node.target, node)
        is_deciding = any(self._branches(node, self._has) or self._shapes(node, self._has) for node in self.scope)
        return is_deciding, self.scope[read[0]] is not None and ("call", self.scope[read[0]]) in self.tainted

    def _spread(self, node):
        if isinstance(node, ast.Return):
            self.tainted.add(("call", self.scope[node]))
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(getattr(node, "value", None), ast.Dict) and all(isinstance(key, ast.Constant) for key in node.value.keys):
                # Of a dict that is written down, what stands under the keys.
                given = [key.value for key, value in zip(node.value.keys, node.value.values) if self._has(value) or _reads(value)]
                self.tainted.update((self.scope[node], target.id, key) for key in given)
                continue
            self._taint(target, node)
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            given = self._own(call)
            if given is not None and not any(self._has(each) or _reads(each) for each in (*call.args, *(named.value for named in call.keywords))):
                continue
            if given is not None:
                self.tainted.update((given, each.arg) for each in given.args.args + given.args.kwonlyargs if each.arg != "self")
            elif isinstance(node, ast.Expr) and call is node.value and isinstance(call.func, ast.Attribute) and call.func.attr not in PUT_OUT:
                # What a list is appended to, or a meter is given.
                self._taint(call.func.value, node, call.func.attr == "append" and not self._is_chosen(node))

    def _is_chosen(self, node):
        """Whether such a value decides that a statement runs."""
        while (node := self.under[node]) is not None:
            if self._has(node.test) or _reads(node.test):
                return True
        return False

    def _taint(self, part, node, is_appended=False):
        if isinstance(part, ast.Name) and part.id != "self" and part.id not in self.modules:
            self.tainted.add((self.scope[node], part.id))
            if not is_appended:
                self.valued.add((self.scope[node], part.id))
        elif isinstance(part, ast.Attribute):
            self.tainted.add(("attribute", part.attr))
        elif isinstance(part, (ast.Tuple, ast.List)):
            for each in part.elts:
                self._taint(each, node)
        elif isinstance(part, (ast.Subscript, ast.Starred)):
            # Not the index: what is read goes under it.
            self._taint(part.value, node)

    def _has(self, node):
        keyed, counted = {}, set()
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Call) and name_of(part) == "len" and len(part.args) == 1 and isinstance(part.args[0], ast.Name):
                counted.add(part.args[0])
            if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and isinstance(part.slice, ast.Constant):
                keyed[part.value] = part.slice.value
            scopes = (self.scope[part], None)
            if isinstance(part, ast.Name) and part in counted and not any((scope, part.id) in self.valued for scope in scopes):
                continue
            if isinstance(part, ast.Name) and any(self._is_tainted(scope, part, keyed) for scope in scopes):
                return True
            if isinstance(part, ast.Attribute) and ("attribute", part.attr) in self.tainted:
                return True
            if isinstance(part, ast.Call) and ("call", self._own(part) or part) in self.tainted:
                return True
        return False

    def _is_tainted(self, scope, name, keyed):
        if (scope, name.id) in self.tainted:
            return True
        if name in keyed:
            return (scope, name.id, keyed[name]) in self.tainted
        # The dict as a whole, and not where it is made.
        return isinstance(name.ctx, ast.Load) and any(len(each) == 3 and each[:2] == (scope, name.id) for each in self.tainted)

    def _branches(self, node, has):
        """Whether it goes on one way or another by such a value."""
        if isinstance(node, ast.If):
            return has(node.test) and not _asks_validity(node.test) and not all(self._only_keeps(each) for each in node.body + node.orelse)
        if isinstance(node, ast.While):
            return has(node.test)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return has(node.iter) and not isinstance(node.iter, ast.Name)
        return isinstance(node, ast.stmt) and any(
            has(test) for part in ast.walk(node) for test in ([part.test] if isinstance(part, ast.IfExp) else getattr(part, "ifs", ()))
        )

    def _only_keeps(self, node):
        for part in ast.walk(node):
            if isinstance(part, (ast.For, ast.While, ast.With, ast.Break, ast.Continue, ast.Return, ast.Delete)):
                return False
            if isinstance(part, ast.Call) and not is_harmless(name_of(part)):
                return False
        return True

    def _shapes(self, node, has):
        """Whether such a value goes into a call or an index that may be a size."""
        if isinstance(node, ast.Subscript):
            return has(node.slice)
        # A tensor of values is as large as they are many.
        if not isinstance(node, ast.Call) or is_harmless(name_of(node)) or name_of(node) in ("tensor", "as_tensor") or self._own(node):
            return False
        return any(has(each) for each in node.args) or any(has(each.value) for each in node.keywords)


def decide(reads):
    sources = {}

    def decides(places):
        for file, line in places:
            if file not in sources:
                with open(file, "rb") as source:
                    sources[file] = _Source(source.read())
            is_deciding, is_returned = sources[file].decides(line)
            if is_deciding or not is_returned:
                return is_deciding
        return False

    found = []
    for places in reads:
        try:
            found.append(decides(places))
        except (OSError, SyntaxError, ValueError, RecursionError):
            found.append(True)
    return found


if __name__ == "__main__":
    json.dump(decide(json.load(sys.stdin)), sys.stdout)
