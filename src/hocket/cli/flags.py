"""Flags for an algorithm, its environment and its networks.

Each field of the algorithm and each field of the command's settings is a flag (see `parse`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import tyro

from hocket.algorithms import ALGORITHMS
from hocket.core.program.describe import build
from hocket.envs import Env, HostEnv, make, name_of
from hocket.envs.registry import is_adapted
from hocket.errors import Mistake, unknown
from hocket.nn.networks import Network
from hocket.system.names import find, read_words
from hocket.training.folder import find_run, read_config
from hocket.training.settings import Settings

DEFAULT_ENV = "CartPole-v1"


def split_word(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Split off the algorithm's name, which comes before the flags, if there is one."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def setting_of(flags: list[str], name: str) -> str:
    """Return a setting as text, without parsing the flags; "" if it is not set.

    It comes from the setting's own flag, or else from the configuration of an earlier run, if
    `--config` or `--resume` names one.
    """
    value = _value(flags, f"--{name}")
    if value is None:
        try:
            config = _config(None, flags)
            value = read_config(Path(config)).get(name) if config else None
        except ValueError:
            pass  # reported by `defaults_of`, which reads the configuration again
    return "" if value is None else str(value)


def defaults_of(word: str | None, flags: list[str], command: str) -> tuple[Any, Settings]:
    """Return the algorithm and the settings to start from, before flags change them.

    They come from the algorithm's name (`word`), or from the configuration of an earlier run.
    """
    config = _config(word, flags)
    if config is not None:
        if word is not None:
            raise ValueError(f"--config says what to train: leave `{word}` out.")
        return _from_config(read_config(Path(config)))
    if word is None:
        if {"-h", "--help"} & set(flags):
            word = "ppo"  # help without an algorithm shows the flags of PPO as an example
        else:
            raise ValueError(
                f"which algorithm? `hocket {command} NAME`, then its flags, with NAME one of "
                f"{', '.join(ALGORITHMS)}, or path/to/file.py:Name."
            )
    return _with_default_env(_algorithm(word), word), Settings()


def _config(word: str | None, flags: list[str]) -> str | None:
    """Return the configuration to start from: `--config`, or the run to resume."""
    config, name = _value(flags, "--config"), _value(flags, "--name")
    if config is None and word is None and name is not None and "--resume" in flags:
        config = str(find_run(Path(_value(flags, "--runs") or "runs") / name))
    return config


def _from_config(config: dict[str, Any]) -> tuple[Any, Settings]:
    known = {f.name for f in dataclasses.fields(Settings)} - {"name"}  # a new run needs a new name
    return build(config["algorithm"]), Settings(**{k: config[k] for k in known & config.keys()})


def _algorithm(word: str) -> Any:
    if word.endswith(".py"):
        raise ValueError(f"which algorithm in `{word}`? Write {word}:Name.")
    if ":" not in word:
        if word not in ALGORITHMS:
            raise ValueError(unknown("algorithm", word, ALGORITHMS))
        return ALGORITHMS[word]
    cls = find(word)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ValueError(
            f"`{word}` is not a dataclass, as an algorithm must be (docs/write-an-algorithm.md)."
        )
    return cls


def _with_default_env(cls: Any, word: str) -> Any:
    needed = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init and f.default is f.default_factory is dataclasses.MISSING
    ]
    if needed not in ([], ["env"]):
        raise ValueError(
            f"the command line can train `{word}` only if every field but `env` has a default; "
            f"these have none: {', '.join(n for n in needed if n != 'env')}."
        )
    return cls(env=make(DEFAULT_ENV)) if needed else cls()


def parse(command: str, word: str | None, flags: list[str], about: str, **parts: Any) -> Any:
    """Return the dataclasses `parts` with the values of the flags; each field is a flag."""
    kinds = [(name, type(part), field(default=part)) for name, part in parts.items()]
    return tyro.cli(
        dataclasses.make_dataclass("Command", kinds), args=flags, description=about,
        prog=f"hocket {command} {word or 'ALGORITHM'}", registry=_registry(),
        config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip


def _registry() -> tyro.constructors.ConstructorRegistry:
    """Return the rules by which tyro reads an environment or a network from its name."""
    registry = tyro.constructors.ConstructorRegistry()

    def add_rule(
        kind: Any, read: Callable[[str], Any], text: Callable[[Any], str], metavar: str
    ) -> None:
        @registry.primitive_rule
        def _(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
            if info.type != kind:
                return None
            return tyro.constructors.PrimitiveConstructorSpec(
                nargs=1, metavar=metavar, instance_from_str=lambda words: _read(read, words[0]),
                is_instance=lambda x: x is not None, str_from_instance=lambda x: [text(x)],
            )  # fmt: skip

    for env in (Env, HostEnv, Env | HostEnv):
        add_rule(env, _env, name_of, "NAME")
    add_rule(Network, _named, lambda x: type(x).__name__, "MODULE:NAME")
    return registry


def _read(read: Callable[[str], Any], words: str) -> Any:
    try:
        return read(words)
    except ValueError as error:
        raise Mistake(str(error)) from error


def _env(words: str) -> Env | HostEnv:
    name, options = read_words(words)
    if ":" not in name or is_adapted(name):
        return make(name, **options)
    env = _named(name, **options)
    if not isinstance(env, (Env, HostEnv)):
        raise ValueError(
            f"`{name}` is not an environment: it needs `reset` and `step`, or `open` (hocket.envs)."
        )
    return env


def _named(path: str, **options: Any) -> Any:
    """Return the object that a path names, or the result of calling it if it is callable."""
    named = find(path)
    return named(**options) if callable(named) else named


def _value(flags: list[str], name: str) -> str | None:
    """Find a flag's value in the unparsed arguments; None if the flag was not given."""
    for i, flag in enumerate(flags):
        if flag == name and i + 1 < len(flags):
            return flags[i + 1]
        if flag.startswith(f"{name}="):
            return flag.removeprefix(f"{name}=")
    return None
