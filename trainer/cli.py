"""Command lines over Hydra configs: `@entry_point("config")` turns `main(cfg) -> exit status` into a program.

Composition goes through Hydra's compose API instead of `hydra.main`, so that no folder is made, no logging is
set up, the working directory stays, and every mistake becomes one line on stderr with exit status 2.
`HYDRA_FULL_ERROR=1` shows the traceback instead.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from trainer import config as trainer_config
from trainer.cli_errors import describe
from trainer.cli_files import store_files

CONFIG_MODULE = "conf"
USER_ERROR = 2
"""Exit status of a mistake that the user can mend."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it."""

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, ValueError, AttributeError, AssertionError)
"""What `compose` raises for mistakes in overrides and files; the last two come from a mapping set onto null."""

Main = Callable[[DictConfig], int | None]


def entry_point(config_name: str) -> Callable[[Main], Callable[..., NoReturn]]:
    """Decorate `main(cfg) -> exit status`; the result parses `argv`, composes, calls it and exits.

    Args:
        config_name: file in `conf/` without `.yaml`.
    """

    def decorate(main: Main) -> Callable[..., NoReturn]:
        def program(argv: Sequence[str] | None = None) -> NoReturn:
            try:
                status = _run(config_name, main, sys.argv[1:] if argv is None else list(argv))
            except KeyboardInterrupt:
                status = INTERRUPTED
            sys.exit(status)

        program.__doc__ = main.__doc__
        program.__name__ = main.__name__
        return program

    return decorate


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"error: {message} (see --help)\n")


def _parser(description: str | None) -> _Parser:
    parser = _Parser(description=description, add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", metavar="option=value", help="changes to the configuration")
    parser.add_argument("-h", "--help", action="store_true", help="show this help and the groups of options")
    parser.add_argument("-c", "--cfg", choices=["job"], help="print the composed configuration and leave")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: fill in ${...}")
    parser.add_argument("-m", "--multirun", action="store_true", help="run once per combination of a=1,2 b=x,y")
    parser.add_argument("--config-dir", metavar="FOLDER", help="folder with further configs, laid out as conf/")
    return parser


def _run(config_name: str, main: Main, argv: list[str]) -> int:
    """Parse, compose and call `main` once per job; return the largest exit status."""
    parser = _parser(main.__doc__)
    arguments = parser.parse_intermixed_args(argv)
    trainer_config.register()
    try:
        overrides = store_files(arguments.overrides)
    except ValueError as error:
        return _fail(str(error))
    if arguments.config_dir is not None:
        if not os.path.isdir(arguments.config_dir):
            parser.error(f"--config-dir {arguments.config_dir}: no such folder")
        overrides.append(f"hydra.searchpath=[file://{os.path.abspath(arguments.config_dir)}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            try:
                if arguments.help:
                    print(parser.format_help() + _groups_help())
                    return 0
                jobs = _expand(overrides) if arguments.multirun else [overrides]
                configs = [compose(config_name, overrides=job) for job in jobs]
            except COMPOSITION_ERRORS as error:
                _raise_if_wanted(error)
                return _fail(_describe_composition(error, config_name, overrides))
    finally:
        GlobalHydra.instance().clear()
    if arguments.cfg:
        for config in configs:
            print(_yaml(config, arguments.resolve), end="")
        return 0
    if arguments.multirun:
        return _sweep(main, configs, jobs)
    return _call(main, configs[0])


def _expand(overrides: list[str]) -> list[list[str]]:
    """The cartesian product of all sweeps (`a=1,2`, `a=range(1,4)`, `a=choice(x,y)`) among the overrides."""
    choices: list[list[str]] = []
    for override in OverridesParser.create().parse_overrides(overrides=overrides):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            raise ValueError(f"{override.input_line}: a sweep needs values (a,b), range(from,to) or choice(a,b)")
    return [list(job) for job in itertools.product(*choices)]


def _sweep(main: Main, configs: list[DictConfig], jobs: list[list[str]]) -> int:
    """Run the jobs one after the other, each in its own subfolder of run_dir; a failed job does not stop the others."""
    status = 0
    jobs = [[override for override in job if not override.startswith("hydra.")] for job in jobs]
    for number, (config, job) in enumerate(zip(configs, jobs, strict=True)):
        print(f"job {number + 1}/{len(jobs)}: {' '.join(job)}", file=sys.stderr, flush=True)
        if "run_dir" in config and not OmegaConf.is_missing(config, "run_dir"):
            with open_dict(config):
                config.run_dir = f"{config.run_dir}/{number}"
        status = max(status, _call(main, config))
    return status


def _call(main: Main, config: DictConfig) -> int:
    try:
        return int(main(config) or 0)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        _raise_if_wanted(error)
        return _fail(describe(error))


def _raise_if_wanted(error: Exception) -> None:
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr, flush=True)
    return USER_ERROR


def _describe_composition(error: Exception, config_name: str, overrides: list[str]) -> str:
    """What is wrong, with the existing options as suggestions and the override that alone gives the same error."""
    ours = [override for override in overrides if override.startswith("hydra.searchpath=")]
    text = describe(error, lambda: _known_options(config_name, ours))
    if isinstance(error, MissingConfigException) or any(override.split("=")[0] in text for override in overrides):
        return text
    for override in overrides:
        try:
            compose(config_name, overrides=[*ours, override])
        except COMPOSITION_ERRORS as alone:
            if str(alone) == str(error):
                return f"{override}: {text}"
    return text


def _known_options(config_name: str, overrides: list[str]) -> list[str]:
    """Dotted names of all options and groups of a config, for "did you mean"; groups alone if it does not compose."""
    try:
        names = _flatten(compose(config_name, overrides=overrides))
    except COMPOSITION_ERRORS:
        names = []
    return names + _group_names()


def _flatten(config: DictConfig, prefix: str = "") -> list[str]:
    names = []
    for key in map(str, config):
        names.append(f"{prefix}{key}")
        node = None if OmegaConf.is_missing(config, key) or OmegaConf.is_interpolation(config, key) else config[key]
        if isinstance(node, DictConfig):
            names.extend(_flatten(node, f"{prefix}{key}."))
    return names


def _group_names() -> list[str]:
    loader = GlobalHydra.instance().config_loader()
    return [group for group in loader.list_groups("") if group != "hydra"]


def _groups_help() -> str:
    """The groups with their choices, one a line."""
    loader = GlobalHydra.instance().config_loader()
    lines = ["", "groups (option=choice):"]
    for group in _group_names():
        choices = [choice for choice in loader.get_group_options(group) if not choice.startswith("_")]
        if choices:
            lines.append(f"  {group}={'|'.join(choices)}")
    lines += ["", "single options: parallel.tp=2 and so on; --cfg job lists all of them"]
    return "\n".join(lines)


def _yaml(config: DictConfig, resolve: bool) -> str:
    return OmegaConf.to_yaml(config, resolve=resolve)
