"""One-token changes of a source file: another operator, number, axis, name; a term, a statement, an argument lost."""

import ast
import re
from itertools import pairwise
from typing import NamedTuple

OPERATORS = {  # what is written, and what is written instead
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.Pow: ("**", "*"), ast.MatMult: ("@", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed file.  `change` is the line with {old → new} in it."""

    file: str
    line: int
    kind: str
    change: str
    text: str


class Source:
    """A file's text, and where in it each syntax node starts and ends."""

    def __init__(self, text):
        self.text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node):
        return self._place(node.lineno, node.col_offset)

    def end(self, node):
        return self._place(node.end_lineno, node.end_col_offset)

    def span(self, node):
        return self.start(node), self.end(node)

    def code(self, node):
        return self.text[self.start(node) : self.end(node)]

    def operator(self, left, right, operator):
        """The edit that exchanges the operator between two operands (brackets may stand there too)."""
        token, other = OPERATORS[type(operator)]
        start = self.text.index(token, self.end(left), self.start(right))
        return start, start + len(token), other

    def swapped(self, a, b):
        """The edit that exchanges two nodes."""
        between = self.text[self.end(a) : self.start(b)]
        return self.start(a), self.end(b), self.code(b) + between + self.code(a)

    def _place(self, line, column):  # columns count UTF-8 bytes
        start = self._lines[line - 1]
        return start + len(self.text[start : self._lines[line]].encode()[:column].decode())


def nodes(tree):
    """The nodes that can be mutated: no imports, annotations, f-strings, or raised errors."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field, child in ast.iter_fields(node):
            signed = isinstance(node, ast.UnaryOp) and isinstance(child, ast.Constant)  # edited with its sign
            if field not in ("annotation", "returns") and not signed:
                children = child if isinstance(child, list) else [child]
                skipped = ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Raise | ast.Assert
                waiting += [c for c in children if isinstance(c, ast.AST) and not isinstance(c, skipped)]


def edits(source, tree):
    """Every mutation as (kind, start, end, new text)."""
    for node in nodes(tree):
        match node:
            case ast.BinOp(left, op, right) if type(op) in OPERATORS:
                start, end, other = source.operator(left, right, op)
                yield "operator", start, end, other
                yield "dropped term", len(source.text[:start].rstrip()), source.end(node), ""
            case ast.Compare(left, ops, rights):
                for a, op, b in zip([left, *rights], ops, rights):
                    yield "comparison", *source.operator(a, b, op)
            case ast.BoolOp(op, values):
                yield "and/or", *source.operator(values[0], values[1], op)
            case ast.UnaryOp(op, operand):
                start = source.start(node)  # of the sign alone: what follows may be in parentheses
                yield f"no {type(op).__name__.lower()}", start, start + (4 if isinstance(op, ast.Not) else 1), ""
                if isinstance(operand, ast.Constant):
                    yield "constant", *source.span(operand), other_number(operand.value, -1)
            case ast.Constant(bool() as value):
                yield "truth", *source.span(node), str(not value)
            case ast.Constant(int() | float() as value):
                yield "constant", *source.span(node), other_number(value)
            case ast.keyword("axis", value) if (code := source.code(value)).lstrip("-").isdigit():
                yield "axis", *source.span(value), str(int(code) - 1)
            case ast.Call(function, [ast.Name(x) as a, ast.Name(y) as b, *_]) if x != y:
                if not source.code(function).endswith("add"):  # which commutes to the last bit
                    yield "swapped arguments", *source.swapped(a, b)
            case ast.Tuple(elements):
                for pair in pairwise(elements):
                    match pair:
                        case ast.Name(x), ast.Name(y) if x != y:
                            yield "swapped names", *source.swapped(*pair)
            case ast.IfExp(body=body, orelse=other):
                yield "always", *source.span(node), source.code(body)
                yield "never", *source.span(node), source.code(other)
            case ast.Expr(ast.Call()) | ast.AugAssign():
                yield "dropped statement", *source.span(node), "pass"
            case ast.FunctionDef():
                yield from other_names(source, node)


def other_number(value, sign=1):
    """One more, or a fifth more, where a number with this sign stands."""
    return str(value + sign) if isinstance(value, int) else repr(1.2 * value)


def other_names(source, function):
    """Each local name replaced by another one that is known by then."""
    names = [n for n in nodes(function) if isinstance(n, ast.Name | ast.arg)]
    known = []
    for node in sorted(names, key=source.start):
        name = node.arg if isinstance(node, ast.arg) else node.id
        if name in ("self", "_"):
            continue
        if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store):
            known += [name] * (name not in known)
        elif name in known and len(known) > 1:
            yield "other name", *source.span(node), known[(known.index(name) + 1) % len(known)]


def mutants_of(path):
    """All mutants of one file, in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    source, found = Source(text), {}
    for kind, start, end, new in edits(source, ast.parse(text)):
        first = text.rfind("\n", 0, start) + 1
        last = len(text) if (stop := text.find("\n", end)) < 0 else stop
        before, after = text[first:start].lstrip(), text[end:last]
        change = re.sub(r"\s*\n\s*", " ", f"{before}{{{text[start:end]} → {new}}}{after.split('  # ')[0]}")
        mutated, line = text[:start] + new + text[end:], text.count("\n", 0, start) + 1
        ast.parse(mutated)
        found.setdefault(mutated, Mutant(f"{path.parent.name}/{path.name}", line, kind, change, mutated))
    return sorted(found.values(), key=lambda m: m.line)
