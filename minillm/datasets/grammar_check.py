"""Does a grammar make sense?  Every fault is found on loading, in every story it could ever spoil."""

import re
from collections.abc import Mapping
from itertools import product

from minillm.datasets.grammar_files import Call, Choice, Mention, Row, Rule, hint

Possible = Mapping[str, tuple[Row, ...]]
"""The rows that each variable chosen so far may be."""


def check_grammar(rules: Mapping[str, Rule]) -> None:
    """Follow every call from `story`; ValueError names file and line of the first fault."""
    visited: set[tuple[str, frozenset[tuple[str, tuple[Row, ...]]]]] = set()
    check_rule(rules, Call(f"{rules['story'].where}", "story"), {}, (), visited)
    for unused in rules.keys() - {name for name, _ in visited}:
        raise ValueError(f"{rules[unused].where}: the rule {unused!r} is never used")


def check_rule(
    rules: Mapping[str, Rule],
    call: Call,
    possible: Possible,
    callers: tuple[str, ...],
    visited: set[tuple[str, frozenset[tuple[str, tuple[Row, ...]]]]],
) -> None:
    """Follow a call, given the rows that each variable may have there, and everything that it calls."""
    where, name = call
    if name not in rules:
        raise ValueError(f"{where}: no rule is called {name!r}{hint(name, rules)}")
    if name in callers:
        raise ValueError(f"{where}: the rule {name!r} calls itself: {' > '.join((*callers, name))}")
    rule = rules[name]
    if not rule.alternatives:
        raise ValueError(f"{rule.where}: the rule {name!r} needs at least one line that starts with |")
    if (name, frozenset(possible.items())) in visited:
        return
    visited.add((name, frozenset(possible.items())))
    possible = dict(possible)
    for choice in rule.choices:
        possible[choice.variable] = check_choice(choice, possible)
    for alternative in rule.alternatives:
        for item in alternative.items:
            if isinstance(item, Call):
                check_rule(rules, item, possible, (*callers, name), visited)
            elif isinstance(item, Mention):
                check_mention(item.where, item.variable, item.form, possible)


def check_choice(choice: Choice, possible: Possible) -> tuple[Row, ...]:
    """The rows that the choice may give, over all that the variables before it may be; none of those may leave none."""
    where = choice.where
    if choice.variable in possible:
        raise ValueError(f"{where}: {choice.variable!r} is chosen already; give the new one another name")
    for name in choice.excluded:
        check_mention(where, name, "", possible)
        if possible[name][0].forms.keys() != choice.table.rows[0].forms.keys():
            raise ValueError(f"{where}: `but not {name}` needs {name} to be from the same list")
    for test in choice.tests:
        if test.variable:
            check_mention(where, test.variable, test.attribute, possible)
    found: dict[Row, None] = {}
    for others in product(*(possible[name] for name in choice.depends_on)):
        rows = choice.allowed(others)
        if not rows:
            case = ", ".join(f"{name} is {row.forms['']!r}" for name, row in zip(choice.depends_on, others))
            raise ValueError(f"{where}: nothing is left to choose for {choice.variable!r}" + (case and f" when {case}"))
        found.update(dict.fromkeys(rows))
    return tuple(found)


def check_mention(where: str, variable: str, form: str, possible: Possible) -> None:
    """A variable must have been chosen, from a list with that column."""
    if variable not in possible:
        raise ValueError(f"{where}: {variable!r} is not chosen before it is used here{hint(variable, possible)}")
    forms = possible[variable][0].forms
    if form not in forms:
        columns = [key for key in forms if key and not re.search(r"[ ^]", key)]
        column = form.strip("^").split(" ")[-1]
        raise ValueError(f"{where}: {variable!r} has no column {column!r}; it has {', '.join(columns)}")
