"""One clear line for each mistake in a configuration: what is wrong, and what would fit.

Hydra and OmegaConf say it in several lines and chained exceptions; `describe` keeps what a user can act on.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

_NEEDS = (
    ("could not be converted to Integer", "needs a whole number"),
    ("could not be converted to Float", "needs a number"),
    ("is not a valid bool", "needs true or false"),
    ("is not Optional", "must not be null"),
    ("is not a ListConfig", "needs a list, as [a,b]"),
    ("is not a subclass of", "is a group of options, set them one by one"),
    ("Cannot convert", "needs a value of another type"),
)
"""Parts of OmegaConf's messages about types, and what each means for the user."""


def describe(error: BaseException, options: Callable[[], Sequence[str]] = tuple) -> str:
    """One line for a Hydra, OmegaConf or value error.

    Args:
        options: gives the dotted names that exist, for "did you mean"; called only where they are needed.
    """
    override = _override_of(error)
    for link in _chain(error):
        if isinstance(link, MissingConfigException) and link.options is not None:
            return _unknown_choice(link)
        if isinstance(link, OverrideParseException):
            return f"cannot read {link.override!r}: write option=value (quote a value with special characters)"
        if isinstance(link, ConfigKeyError | ConfigAttributeError):
            return _unknown_option(link, override, options())
        if isinstance(link, MissingMandatoryValue):
            return f"{link.full_key or link.key}: a value is needed, set {link.full_key or link.key}=..."
        if isinstance(link, InterpolationResolutionError):
            return f"{link.full_key}: {_first_line(link)}"
        if isinstance(link, ValidationError):
            return _wrong_type(link, override)
    if isinstance(error, AttributeError | AssertionError):
        return "a mapping for an empty option cannot be given here: set it in a file (see --config-dir)"
    text = str(error)
    if found := re.match(r"Ambiguous value for argument '(.*)'", text):
        key = found[1].partition("=")[0]
        return f"{found[1]}: several values need -m (one run each); a list is written {key}=[a,b]"
    if found := re.match(r"Could not override '([^']*)'", text):
        return unknown(found[1], options())
    return f"{override}: {_first_line(error)}" if override and override not in text else _first_line(error)


def unknown(name: str, options: Sequence[str]) -> str:
    """ "unknown option NAME", with the nearest existing one."""
    near = nearest(name, options)
    return f"unknown option {name}" + (f": did you mean {near}?" if near else "")


def nearest(name: str, options: Sequence[str]) -> str | None:
    """The option that `name` most likely means: by its last part anywhere in the tree, else by spelling."""
    same_leaf = [option for option in options if option.rpartition(".")[2] == name]
    if same_leaf:
        return same_leaf[0]
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if close:
        return close[0]
    leaves = {option.rpartition(".")[2]: option for option in options}
    close = difflib.get_close_matches(name.rpartition(".")[2], list(leaves), n=1, cutoff=0.75)
    return leaves[close[0]] if close else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _override_of(error: BaseException) -> str | None:
    """The command-line override that Hydra blames, as typed."""
    found = re.match(r"Error merging override (.*)", str(error)) or re.search(
        r"To append to your config use \+(.*)", str(error)
    )
    return found[1] if found else None


def _unknown_choice(error: MissingConfigException) -> str:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    choices = sorted(option for option in error.options or () if not option.startswith("_"))
    near = difflib.get_close_matches(choice, choices, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{group}={choice}: no such choice{hint}; {group} is one of: {', '.join(choices)}"


def _unknown_option(error: OmegaConfBaseException, override: str | None, options: Sequence[str]) -> str:
    name = error.full_key or str(error.key)
    if error.object_type is not None and dataclasses.is_dataclass(error.object_type):
        fields = [entry.name for entry in dataclasses.fields(error.object_type)]
        prefix = override.partition("=")[0].lstrip("+~") if override else ""
        inside_value = bool(prefix) and not name.startswith(prefix.partition(".")[0])
        if inside_value:  # an element of a list: its key is relative
            return f"{prefix}: {unknown(name, fields)} (options: {', '.join(fields)})"
        if not options:
            parent = name.rpartition(".")[0]
            options = [f"{parent}.{entry}" if parent else entry for entry in fields]
    return unknown(name, options)


def _wrong_type(error: OmegaConfBaseException, override: str | None) -> str:
    text = _first_line(error)
    needs = next((meaning for part, meaning in _NEEDS if part in text), text)
    found = re.match(r"Value '(.*)' of type|Value '(.*)' is not", text)
    value = next((group for group in found.groups() if group is not None), None) if found else None
    if override is None:
        return f"{error.full_key}: {needs}" + (f", not {value!r}" if value else "")
    key, _, typed = override.partition("=")
    inner = "" if (error.full_key or key).startswith(key.lstrip("+")) else f" ({error.full_key})"
    return f"{override}{inner}: {needs}" + (f", not {value!r}" if value and value != typed else "")
