"""How an algorithm, with its environment and networks, is written on the command line.

An algorithm's fields are flags, and so are those of the other dataclasses of a command.
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
    """The algorithm's name, which comes first, and the flags."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def setting_of(flags: list[str], name: str) -> str:
    """A setting, before the flags are read properly; "" where there is none, or it is unclear."""
    given = _value(flags, f"--{name}")
    if given is not None:
        return given
    try:
        config = _config(None, flags)
        kept = read_config(Path(config)).get(name) if config else None
    except ValueError:
        return ""  # told when the flags are read properly
    return "" if kept is None else str(kept)


def defaults_of(word: str | None, flags: list[str], command: str) -> tuple[Any, Settings]:
    """The algorithm and the settings before any flag: by name, or those of an earlier run."""
    config = _config(word, flags)
    if config is not None:
        if word is not None:
            raise ValueError(f"--config says what to train: leave `{word}` out.")
        return _from_config(read_config(Path(config)))
    if word is None:
        if {"-h", "--help"} & set(flags):
            word = "ppo"  # its help shows everything that is common to all
        else:
            raise ValueError(
                f"which algorithm? `hocket {command} NAME`, then its flags, with NAME one of "
                f"{', '.join(ALGORITHMS)}, or path/to/file.py:Name."
            )
    return _with_default_env(_algorithm(word), word), Settings()


def _config(word: str | None, flags: list[str]) -> str | None:
    """The configuration to begin from: that of `--config`, or of the run that is resumed."""
    config, name = _value(flags, "--config"), _value(flags, "--name")
    if config is None and word is None and name is not None and "--resume" in flags:
        config = str(find_run(Path(_value(flags, "--runs") or "runs") / name))
    return config


def _from_config(config: dict[str, Any]) -> tuple[Any, Settings]:
    known = {f.name for f in dataclasses.fields(Settings)} - {"name"}  # a new run has its own
    return build(config["algorithm"]), Settings(**{k: config[k] for k in known & config.keys()})


def _algorithm(word: str) -> Any:
    if word.endswith(".py"):
        raise ValueError(f"which algorithm of `{word}`? Write {word}:Name.")
    if ":" not in word:
        if word not in ALGORITHMS:
            raise ValueError(unknown("algorithm", word, ALGORITHMS))
        return ALGORITHMS[word]
    cls = find(word)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ValueError(
            f"`{word}` is no dataclass, and an algorithm is one (docs/write-an-algorithm.md)."
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
            f"`{word}` can be trained from here if every field but `env` has a default; these have "
            f"none: {', '.join(n for n in needed if n != 'env')}."
        )
    return cls(env=make(DEFAULT_ENV)) if needed else cls()


def parse(command: str, word: str | None, flags: list[str], about: str, **parts: Any) -> Any:
    """Read the flags into copies of some dataclasses, without a prefix."""
    kinds = [(name, type(part), field(default=part)) for name, part in parts.items()]
    cls = dataclasses.make_dataclass("Command", kinds)
    cls.__doc__ = about
    return tyro.cli(
        cls, args=flags, prog=f"hocket {command} {word or 'ALGORITHM'}", registry=_registry(),
        config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip


def _registry() -> tyro.constructors.ConstructorRegistry:
    """How environments and networks are written on the command line."""
    registry = tyro.constructors.ConstructorRegistry()

    def words(
        kind: Any, read: Callable[[str], Any], text: Callable[[Any], str], metavar: str
    ) -> None:
        @registry.primitive_rule
        def _(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
            if info.type != kind:
                return None
            return tyro.constructors.PrimitiveConstructorSpec(
                nargs=1, metavar=metavar, instance_from_str=lambda found: _told(read, found[0]),
                is_instance=lambda x: x is not None, str_from_instance=lambda x: [text(x)],
            )  # fmt: skip

    for env in (Env, HostEnv, Env | HostEnv):
        words(env, _env, name_of, "NAME")
    words(Network, _network, lambda x: type(x).__name__, "MODULE:NAME")
    return registry


def _told(read: Callable[[str], Any], words: str) -> Any:
    try:
        return read(words)
    except ValueError as error:
        raise Mistake(str(error)) from error


def _env(words: str) -> Env | HostEnv:
    name, options = read_words(words)
    if ":" not in name or is_adapted(name):
        return make(name, **options)
    named = find(name)
    env = named(**options) if callable(named) else named
    if not isinstance(env, (Env, HostEnv)):
        raise ValueError(
            f"`{name}` is no environment: it has no `reset` and `step`, nor `open` (hocket.envs)."
        )
    return env


def _network(words: str) -> Any:
    named = find(words)
    return named() if callable(named) else named


def _value(flags: list[str], name: str) -> str | None:
    """The value of a flag, before the flags are read properly."""
    for i, flag in enumerate(flags):
        if flag == name and i + 1 < len(flags):
            return flags[i + 1]
        if flag.startswith(f"{name}="):
            return flag.removeprefix(f"{name}=")
    return None
