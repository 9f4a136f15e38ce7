"""A YAML file of the user's own as the choice of a config group: `cluster=my_cluster.yaml`.

Hydra knows choices by name only. Here the file is read and stored under a name of its own; single values given after
it (`cluster.mtbf_s=600`) change it as they change any other choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

_FILE_CHOICE = re.compile(r"(?P<group>[A-Za-z_]\w*)=(?P<path>[^,\[\]{}]+\.ya?ml)")


def store_files(overrides: Sequence[str]) -> list[str]:
    """Overrides with every `group=path.yaml` replaced by the name under which the file's content is now stored.

    Raises:
        ValueError: no such file, or it is not a YAML mapping.
    """
    return [_stored(override) for override in overrides]


def _stored(override: str) -> str:
    match = _FILE_CHOICE.fullmatch(override)
    if match is None:
        return override
    path = Path(match["path"]).expanduser()
    if not path.is_file():
        raise ValueError(f"{override}: no such file")
    try:
        content = OmegaConf.load(path)
    except yaml.YAMLError as error:
        raise ValueError(f"{override}: not a YAML file ({' '.join(str(error).split())})") from error
    if not isinstance(content, DictConfig):
        raise ValueError(f"{override}: the file must be a mapping, one `name: value` a line")
    name = "file_" + re.sub(r"\W", "_", str(path.resolve()))
    ConfigStore.instance().store(group=match["group"], name=name, node=content)
    return f"{match['group']}={name}"
