"""docs/configuration.md out of the structured configs: `python -m trainer.config_reference > docs/configuration.md`.

Names, types and defaults come from the dataclasses, explanations from the string under each field, limits from
`trainer.validation`; so the page cannot say what the code does not.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any, get_args, get_origin, get_type_hints

from fault_tolerance.runtime.injection import PHASES, SIGNALS
from trainer import config as schema
from trainer.validation import CHOICES, INFINITY, RANGES

INTRODUCTION = """# Configuration

Made by `make docs` from `trainer/config.py`; do not edit.

`python -m trainer` composes `conf/config.yaml` with Hydra. Choose files of a group by `model=small`, set single options
by `train.steps=200`, see the outcome by `--cfg job`, run combinations by `-m seed=1,2,3` (one subfolder each).
"""


def render() -> str:
    """The page."""
    groups = [entry for entry in dataclasses.fields(schema.Config) if dataclasses.is_dataclass(_hint(entry))]
    parts = [INTRODUCTION, _section("The run", schema.Config, "")]
    parts += [_section(f"`{entry.name}`", _hint(entry), f"{entry.name}.") for entry in groups]
    parts.append(_section("Elements of `failures.events`", schema.FailureEvent, "failures.events[]."))
    return "\n".join(parts)


def field_docs(kind: type) -> dict[str, str]:
    """The string under each field of a dataclass.

    Raises:
        OSError: the source is not at hand.
    """
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def _hint(entry: dataclasses.Field[Any]) -> Any:
    return get_type_hints(schema.Config)[entry.name]


def _section(title: str, kind: type, prefix: str) -> str:
    docs, hints = field_docs(kind), get_type_hints(kind)
    lines = [
        f"## {title}",
        "",
        inspect.getdoc(kind) or "",
        "",
        "| option | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for entry in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[entry.name]):
            continue
        text = docs[entry.name]
        meaning = (text + _limits(f"{prefix}{entry.name}", text)).replace("|", "\\|")
        lines.append(f"| `{prefix}{entry.name}` | {_type(hints[entry.name])} | {_default(entry)} | {meaning} |")
    return "\n".join([*lines, ""])


def _type(hint: Any) -> str:
    if get_origin(hint) is list:
        return f"list of {_type(get_args(hint)[0])}"
    arguments = get_args(hint)
    if type(None) in arguments:
        return f"{_type(arguments[0])} or null"
    if get_origin(hint) is dict:
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, "mapping")


def _default(entry: dataclasses.Field[Any]) -> str:
    if entry.default_factory is not dataclasses.MISSING:
        value = entry.default_factory()
    else:
        value = entry.default
    if value == "???":
        return "a new folder under `runs/`"
    if isinstance(value, bool) or value is None:
        return {True: "`true`", False: "`false`", None: "`null`"}[value]
    return f"`{value}`"


def _limits(name: str, text: str) -> str:
    """What `trainer.validation` enforces; choices only where the text under the field does not name them all."""
    choices = {"failures.events[].phase": PHASES, "failures.events[].signal": SIGNALS, **CHOICES}.get(name)
    if choices:
        if all(choice in text for choice in choices):
            return ""
        return f" One of: {', '.join(f'`{choice}`' for choice in choices)}."
    if name in RANGES:
        low, high = RANGES[name]
        return f" At least {low:g}." if high in (INFINITY, 2**63 - 1) else f" {low:g} to {high:g}."
    return ""


if __name__ == "__main__":
    print(render(), end="")
