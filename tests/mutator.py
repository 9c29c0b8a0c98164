"""Mutants of a Python source file, made by rule: each changes one expression or leaves out one statement.

A mutant is known by its file, function, operator and the code it changes, not by a line number, so it keeps
its name while the rest of the file is edited. To add an operator, write one function under `@operator`: it
looks at one node and yields what to put in its place.
"""

import ast
import copy
import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Edit:
    """Text in place of a node."""

    node: ast.expr | ast.stmt | ast.Slice
    text: str


@dataclass(frozen=True)
class Change:
    """What an operator makes of a node: the code before and after, for people, and the edits that do it."""

    before: str
    after: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Mutant:
    """One changed copy of a source file.

    Attributes:
        id: file, function, operator, the code before and after, and a number where that occurs repeatedly.
        operator: the rule that made it.
        source: the whole changed file.
    """

    id: str
    operator: str
    source: str = field(repr=False)

    def diff(self, original: str) -> str:
        """The change as lines with - and +, without the unchanged ones."""
        lines = difflib.unified_diff(original.splitlines(), self.source.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


@dataclass(frozen=True)
class Scope:
    """What an operator may know beside the node itself.

    Attributes:
        parent: the node around it.
        names: what a name can refer to here: parameters, variables, the module's own names.
        attributes: every attribute that the file reads.
        bound: the names that have a value before the statement that holds the node.
    """

    parent: ast.AST
    names: Collection[str]
    attributes: Collection[str]
    bound: Collection[str]


Operator = Callable[[ast.AST, Scope], Iterator[Change]]
OPERATORS: dict[str, Operator] = {}


def operator(function: Operator) -> Operator:
    """Register an operator; its name and docstring are published."""
    OPERATORS[function.__name__.replace("_", " ")] = function
    return function


# Words of names that stand for one another in a kernel that rotates q and k; a name with one of them is
# mistaken for the name with the other where that exists.
COUNTERPARTS = (
    ("q", "k"), ("query", "key"), ("cos", "sin"), ("lo", "hi"), ("first", "second"), ("x", "out"), ("b", "n"),
    ("n", "h"), ("T", "H"), ("token", "head"), ("tokens", "heads"), ("ROT", "BLOCK"), ("HALF", "TAIL"),
    ("start", "end"),
)  # fmt: skip

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
# Calls whose first two arguments may change places.
_COMMUTING = ("min", "max", "minimum", "maximum", "fma", "transpose", "swapaxes")
# Longer expressions make ids that nobody reads.
_LONG = 60
_CASTS = ("to", "long", "int", "float", "double", "half", "bfloat16")


@operator
def swap_operator(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """`+` for `-`, `*` for `+`, `//` for `%`, `&` for `|`, `<` for `<=` and for `>=`, `and` for `or`, ..."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for op in _ARITHMETIC.get(type(node.op), ()):
            yield _put(node, _with(node, op=op()))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for comparison in _COMPARISONS[type(node.ops[0])]:
            yield _put(node, _with(node, ops=[comparison()]))
    elif isinstance(node, ast.BoolOp):
        yield _put(node, _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))


@operator
def swap_operands(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """Operands whose order matters, neighbouring arguments of a call, neighbours in a tuple."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ORDERED):
        yield _put(node, _with(node, left=node.right, right=node.left))
    elif isinstance(node, ast.IfExp):
        yield _put(node, _with(node, body=node.orelse, orelse=node.body))
    elif isinstance(node, ast.Call) and _called(node) != "arange":
        first = 1 if _called(node) in _COMMUTING else 0
        yield from _swap_neighbours(node.args[first:])
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        yield from _swap_neighbours(node.elts)


@operator
def drop_operand(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """One side alone: a term of an offset, a factor, a part of a mask or of a condition is gone."""
    if isinstance(node, ast.BinOp):
        yield _put(node, node.left)
        yield _put(node, node.right)
    elif isinstance(node, ast.BoolOp):
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield _put(node, rest[0] if len(rest) == 1 else _with(node, values=rest))


@operator
def drop_mask(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """A load or a store without its mask."""
    if isinstance(node, ast.Call) and any(k.arg == "mask" for k in node.keywords):
        kept = [k for k in node.keywords if k.arg not in ("mask", "other")]
        yield _put(node, _with(node, keywords=kept))


@operator
def change_other(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """A masked load that gives another value, or any value, where the mask is off."""
    if not isinstance(node, ast.Call):
        return
    for i, keyword in enumerate(node.keywords):
        if keyword.arg == "other":
            is_zero = isinstance(keyword.value, ast.Constant) and keyword.value.value == 0
            value = ast.keyword("other", ast.Constant(1 if is_zero else 0))
            rest = node.keywords[:i] + node.keywords[i + 1 :]
            yield _put(node, _with(node, keywords=rest))
            yield _put(node, _with(node, keywords=[*rest, value]))


@operator
def shift_constant(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """An integer one larger and one smaller: another axis, another stride, another bound."""
    value = None if isinstance(scope.parent, ast.UnaryOp) else _integer(node)
    if value is not None:
        for shifted in (value + 1, value - 1):
            yield _put_within(scope.parent, node, ast.parse(str(shifted), mode="eval").body)


@operator
def shift_index(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """`arange` one too far and one too short; the bound of a comparison one smaller; the end of a slice."""
    if isinstance(node, ast.Call) and _called(node) == "arange":
        yield _put(node, _plus(node, 1))
        yield _put(node, _plus(node, -1))
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        bound = node.comparators[0]
        if _integer(bound) is None:
            yield _put(node, _with(node, comparators=[_plus(bound, -1)]))
    elif isinstance(node, ast.Slice):
        for side in ("lower", "upper"):
            end = getattr(node, side)
            if end is not None:
                if _integer(end) != 0:
                    yield _put(node, _with(node, **{side: None}))
                if _integer(end) is None:
                    yield _put(node, _with(node, **{side: _plus(end, 1)}))


@operator
def exchange_name(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """`q` for `k`, `cos` for `sin`, `lo` for `hi`, `n` for `h` in a name, where the other name exists."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for name in _counterparts(node.id):
            if name in scope.names:
                yield _put_within(scope.parent, node, ast.Name(name, node.ctx))
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for name in _counterparts(node.attr):
            if name in scope.attributes:
                yield _put(node, _with(node, attr=name))


@operator
def drop_cast(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """A value in the dtype that it has."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _CASTS:
            yield _put(node, node.func.value)
        elif node.func.attr == "cast" and node.args:
            yield _put(node, node.args[0])


@operator
def drop_sign(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """`x` for `-x`, `not x` and `~x`."""
    if isinstance(node, ast.UnaryOp) and _integer(node) is None:
        yield _put(node, node.operand)


@operator
def negate_condition(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """The other branch, where no other operator leads there."""
    test = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else None
    if test is not None and not isinstance(test, ast.Compare | ast.UnaryOp):
        yield _put(test, ast.UnaryOp(ast.Not(), test))


@operator
def drop_choice(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """One branch of a `where`, one side of a `min` or `max`, whatever the other is."""
    if isinstance(node, ast.Call) and _called(node) in ("where", "min", "max", "minimum", "maximum"):
        for argument in node.args[-2:]:
            yield _put(node, argument)


@operator
def flip_flag(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """`True` for `False`, `False` for `True`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _put(node, ast.Constant(not node.value))


@operator
def drop_statement(node: ast.AST, scope: Scope) -> Iterator[Change]:
    """A store, another call, or a second assignment to a name does not happen."""
    targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
    rebinds = targets and all(isinstance(t, ast.Name) and t.id in scope.bound for t in targets)
    if rebinds or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        assert isinstance(node, ast.stmt)
        yield Change(ast.unparse(node), "pass", (Edit(node, "pass"),))


def mutants(source: str, file: str, functions: Collection[str] = ()) -> list[Mutant]:
    """Every mutant of a source file, in the order of its lines.

    Args:
        source: the text of the file.
        file: its name in the ids.
        functions: the functions to mutate, `Class.method` for methods; all when empty.

    Raises:
        ValueError: there is no function of such a name, or nothing to mutate.
    """
    tree = ast.parse(source)
    module_names = _names(tree.body)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    seen, count = {source}, Counter[str]()
    made = []
    known = dict(_functions(tree))
    if not set(functions) <= set(known):
        raise ValueError(
            f"{file} has no function {', '.join(set(functions) - set(known))}, but {', '.join(known)}"
        )
    for name, function in known.items():
        if functions and name not in functions:
            continue
        for node, scope in _sites(function, module_names, attributes):
            for rule, operate in OPERATORS.items():
                for change in operate(node, scope):
                    changed = _edited(source, change.edits)
                    if changed in seen:
                        continue
                    seen.add(changed)
                    what = f"{file}:{name}:{rule}:{change.before} -> {change.after}"
                    count[what] += 1
                    number = f" #{count[what]}" if count[what] > 1 else ""
                    made.append(Mutant(what + number, rule, changed))
    if not made:
        raise ValueError(f"{file}: nothing to mutate")
    return made


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{inside}{node.name}"
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from _functions(node, f"{name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _functions(node, inside)


def _sites(
    function: ast.FunctionDef, module_names: set[str], attributes: set[str]
) -> Iterator[tuple[ast.AST, Scope]]:
    """The nodes of a function's body that decide what it does: no annotations, no messages."""
    parameters = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    names = module_names | parameters | _names(function.body)
    bound = set(parameters)

    def visit(node: ast.AST, parent: ast.AST) -> Iterator[tuple[ast.AST, Scope]]:
        if isinstance(node, _SILENT):
            return
        yield node, Scope(parent, names, attributes, frozenset(bound))
        skipped = getattr(node, "annotation", None)
        for child in ast.iter_child_nodes(node):
            if child is not skipped:
                yield from visit(child, node)
        if isinstance(node, ast.stmt):
            bound.update(_names([node]))

    for statement in function.body:
        yield from visit(statement, function)


# What is not mutated: messages, imports, docstrings, functions that are visited on their own.
_SILENT = (
    ast.Raise,
    ast.Assert,
    ast.JoinedStr,
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Lambda,
)


def _names(statements: list[ast.stmt]) -> set[str]:
    """The names that statements bind."""
    names = set()
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).split(".")[0])
    return names


def _put(node: ast.AST, new: ast.AST) -> Change:
    """One node in place of another."""
    assert isinstance(node, ast.expr | ast.stmt | ast.Slice)
    text = ast.unparse(new)
    # Brackets cost nothing where they are not needed, and keep the order of evaluation where they are.
    operators = ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp
    loose = isinstance(node, ast.expr) and isinstance(new, operators) and _integer(new) is None
    return Change(ast.unparse(node), text, (Edit(node, f"({text})" if loose else text),))


def _put_within(parent: ast.AST, node: ast.AST, new: ast.AST) -> Change:
    """As _put, told with the expression around it, where a name or a number alone would say too little."""
    change = _put(node, new)
    if not isinstance(parent, _TELLING):
        return change
    changed: dict[str, object] = {}
    for field_name, value in ast.iter_fields(parent):
        if value is node:
            changed[field_name] = new
        elif isinstance(value, list):
            changed[field_name] = [new if v is node else v for v in value]
    before, after = ast.unparse(parent), ast.unparse(_with(parent, **changed))
    return change if len(before) > _LONG else replace(change, before=before, after=after)


_TELLING = (ast.BinOp, ast.Compare, ast.Subscript, ast.Attribute, ast.Call, ast.Assign)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _plus(node: ast.expr, amount: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if amount > 0 else ast.Sub(), ast.Constant(abs(amount)))


def _swap_neighbours(nodes: list[ast.expr]) -> Iterator[Change]:
    """Neighbours of one kind: a name in place of a sum is more often nonsense than a mistake."""
    for a, b in itertools.pairwise(nodes):
        one, other = ast.unparse(a), ast.unparse(b)
        if one != other and (type(a) is type(b) or {type(a), type(b)} == {ast.Slice, ast.Constant}):
            yield Change(f"{one}, {other}", f"{other}, {one}", (Edit(a, other), Edit(b, one)))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _integer(node: ast.AST) -> int | None:
    """The value of an integer literal, with its sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _counterparts(name: str) -> Iterator[str]:
    words = name.split("_")
    for i, word in enumerate(words):
        for a, b in COUNTERPARTS:
            if word in (a, b):
                yield "_".join([*words[:i], b if word == a else a, *words[i + 1 :]])


def _edited(source: str, edits: tuple[Edit, ...]) -> str:
    # Columns of syntax trees count bytes.
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = b"".join(lines)
    for edit in sorted(edits, key=lambda edit: (edit.node.lineno, edit.node.col_offset), reverse=True):
        start = starts[edit.node.lineno - 1] + edit.node.col_offset
        end = starts[(edit.node.end_lineno or 0) - 1] + (edit.node.end_col_offset or 0)
        text = text[:start] + edit.text.encode() + text[end:]
    return text.decode()
