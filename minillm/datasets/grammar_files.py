"""The files of a grammar: word lists in words/*.txt, rules in rules/*.txt, read into plain records.

A word list is a table; its file name is its name, its first line names the columns, a row is a thing to choose.

    # words/toys.txt
    name | made
    ball | rubber
    drum | tin

A rule says how to write a piece of a story.  `choose` picks rows, evenly; a line that starts with `|` is one way to
write the piece, a number before it is its weight (1 if absent), and a line below it goes on after a line break.

    # rules/play.txt
    rule story
        choose hero from children
        choose friend from children but not hero
        choose toy from toys with owner = hero
        3 | {hero} had {a toy}. [they play]
          | {hero} gave {friend} {hero.their} (old|new) {toy}.
            {friend.They} smiled.

{toy} is the first column of the row that was chosen for toy, {toy.made} another; {Toy} and {toy.Made} start with a
capital letter; {a toy} and {A toy} put the right article before it.  [they play] is the rule of that name, which sees
all that was chosen so far.  (old|new) is an even choice on the spot.  `with owner = hero` keeps the rows whose column
`owner` has the same text as hero's first column (`hero.name`: that column; `"Tom"`: that text).  The first rule is
called `story`.  Rules may not call themselves, so every story ends.
grammar_check.py tells whether all that makes sense.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class Row:
    """One thing to choose: every form in which it can be mentioned, under the key that `Mention.form` has."""

    forms: dict[str, str]


class Table(NamedTuple):
    """A word list."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class Test(NamedTuple):
    """`with column = variable.attribute`, or `with column = "text"` (then variable is empty)."""

    column: str
    variable: str
    attribute: str


@dataclass(frozen=True, eq=False)
class Choice:
    """`choose variable from table`: evenly among the rows that pass every test and are not chosen for `excluded`."""

    where: str
    variable: str
    table: Table
    tests: tuple[Test, ...]
    excluded: tuple[str, ...]
    depends_on: tuple[str, ...]
    """The variables that decide which rows are allowed."""
    _allowed: dict[tuple[Row, ...], tuple[Row, ...]] = field(default_factory=dict)

    def allowed(self, others: tuple[Row, ...]) -> tuple[Row, ...]:
        """The rows to choose from when the variables of `depends_on` are these rows."""
        if others not in self._allowed:
            chosen = dict(zip(self.depends_on, others))
            rows = [r for r in self.table.rows if r not in [chosen[name] for name in self.excluded]]
            for column, name, text in self.tests:
                wanted = chosen[name].forms[text] if name else text
                rows = [row for row in rows if row.forms[column] == wanted]
            self._allowed[others] = tuple(rows)
        return self._allowed[others]


class Mention(NamedTuple):
    """{a variable.attribute}: `form` is the key in `Row.forms`; ^ marks a capital letter."""

    where: str
    variable: str
    form: str


class Call(NamedTuple):
    """[rule]."""

    where: str
    rule: str


Item = str | Mention | Call


class Alternative(NamedTuple):
    """One way to write a rule."""

    weight: float
    items: tuple[Item, ...]


@dataclass(frozen=True, eq=False)
class Rule:
    """What is chosen first, then the ways to write it."""

    where: str
    name: str
    choices: list[Choice] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)


CHOOSE = re.compile(r"choose ([a-z]\w*) from (\w+)((?: but not [a-z]\w*| with [a-z]\w* = (?:\"[^\"]*\"|[a-z][\w.]*))*)")
CONDITION = re.compile(r" but not (\w+)| with (\w+) = (?:\"([^\"]*)\"|(\w+)(?:\.(\w+))?)")
ALTERNATIVE = re.compile(r"([^|{\[(]*)\|\s*(.*)")
ITEM = re.compile(r"\{(a |A |)([A-Za-z]\w*)(?:\.([A-Za-z]\w*))?\}|\[([^\[\]]+)\]|\(([^()]*)\)|([^{}\[\]()]+)")


def read_grammar(folder: Path) -> dict[str, Rule]:
    """The rules of a grammar by name; ValueError names file and line of the first fault."""
    tables = {path.stem: read_table(path) for path in sorted((folder / "words").glob("*.txt"))}
    rules: dict[str, Rule] = {}
    for path in sorted((folder / "rules").glob("*.txt")):
        read_rules(path, tables, rules)
    if "story" not in rules:
        raise ValueError(f"{folder / 'rules'}: no rule is called story, so there is nothing to begin with")
    return rules


def read_table(path: Path) -> Table:
    """A word list."""
    lines = list(numbered_lines(path))
    if len(lines) < 2:
        raise ValueError(f"{path}:1: a list needs a line that names its columns and at least one row")
    columns, *rows = [(where, tuple(cell.strip() for cell in line.split("|"))) for where, line in lines]
    for name in columns[1]:
        if not re.fullmatch(r"[a-z]\w*", name) or columns[1].count(name) > 1:
            raise ValueError(f"{columns[0]}: columns need different names of small letters: got {name!r}")
    made: dict[tuple[str, ...], Row] = {}
    for where, cells in rows:
        if len(cells) != len(columns[1]) or not all(cells):
            raise ValueError(f"{where}: expected {len(columns[1])} cells ({' | '.join(columns[1])}): got {len(cells)}")
        if cells in made:
            raise ValueError(f"{where}: this row is in the list already")
        made[cells] = Row(dict(forms_of(columns[1], cells)))
    return Table(columns[1], tuple(made.values()))


def forms_of(columns: tuple[str, ...], cells: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every form in which a row can be mentioned: column, article and capital letter."""
    for column, text in zip(("", *columns), (cells[0], *cells)):
        article = "an" if text[0].lower() in "aeiou" else "a"
        yield column, text
        yield f"{column}^", text[0].upper() + text[1:]
        yield f"a {column}", f"{article} {text}"
        yield f"A {column}", f"{article.capitalize()} {text}"


def read_rules(path: Path, tables: Mapping[str, Table], rules: dict[str, Rule]) -> None:
    """Add the rules of one file to `rules`."""
    rule = None
    for where, line in numbered_lines(path):
        if line.startswith("rule "):
            rule = Rule(where, line[5:].strip())
            if rule.name in rules:
                raise ValueError(f"{where}: the rule {rule.name!r} is written already, at {rules[rule.name].where}")
            rules[rule.name] = rule
        elif rule is None:
            raise ValueError(f"{where}: expected `rule NAME` before anything else")
        elif line.startswith("choose "):
            rule.choices.append(read_choice(where, line, tables))
        elif parts := ALTERNATIVE.fullmatch(line):
            rule.alternatives.append(
                Alternative(read_weight(where, parts[1].strip()), tuple(read_items(where, parts[2], rules)))
            )
        elif rule.alternatives:
            weight, items = rule.alternatives.pop()
            rule.alternatives.append(Alternative(weight, (*items, "\n", *read_items(where, line, rules))))
        else:
            raise ValueError(f"{where}: expected `choose ...` or `| text`: got {line!r}")


def read_weight(where: str, text: str) -> float:
    """The number before a `|`."""
    try:
        weight = float(text or 1)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise ValueError(f"{where}: a weight must be a number above 0: got {text!r}")
    return weight


def read_choice(where: str, line: str, tables: Mapping[str, Table]) -> Choice:
    """choose VARIABLE from LIST [but not VARIABLE] [with COLUMN = VARIABLE.COLUMN] ..."""
    parts = CHOOSE.fullmatch(line)
    if not parts:
        raise ValueError(
            f"{where}: expected `choose NAME from LIST`, perhaps `but not NAME` or `with COLUMN = NAME`; got {line!r}"
        )
    table = tables.get(parts[2])
    if table is None:
        raise ValueError(f"{where}: no word list is called {parts[2]!r}{hint(parts[2], tables)}")
    excluded, tests = [], []
    for other, column, text, variable, attribute in CONDITION.findall(parts[3]):
        if other:
            excluded.append(other)
        elif column not in table.columns:
            raise ValueError(f"{where}: the list {parts[2]!r} has no column {column!r}{hint(column, table.columns)}")
        else:
            tests.append(Test(column, variable, attribute if variable else text))
    depends_on = dict.fromkeys([*excluded, *(test.variable for test in tests if test.variable)])
    return Choice(where, parts[1], table, tuple(tests), tuple(excluded), tuple(depends_on))


def read_items(where: str, text: str, rules: dict[str, Rule]) -> Iterator[Item]:
    """Split the text of an alternative; a choice on the spot becomes a rule without a name of its own."""
    end = 0
    while end < len(text):
        found = ITEM.match(text, end)
        if not found:
            raise ValueError(f"{where}: this bracket has no partner or a wrong inside: {text[end:]!r}")
        article, variable, attribute, call, options, literal = found.groups()
        if variable:
            name = attribute or variable
            form = (attribute or "").lower() + ("^" if name[0].isupper() and not article else "")
            yield Mention(where, variable.lower(), article + form)
        elif call:
            yield Call(where, call)
        elif literal:
            yield literal
        else:
            name = f"{where}({options})"
            ways = [Alternative(1.0, tuple(read_items(where, option, rules))) for option in (options or "").split("|")]
            rules[name] = Rule(where, name, [], ways)
            yield Call(where, name)
        end = found.end()


def hint(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """The end of a message about an unknown name."""
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known)[:12])}"


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that say something, each with file:line before it."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{path}:{number}", line.strip()
