"""Finds the scenario that a command names: a file's path or a name of the library. Leaves the format to `scenario`."""

from __future__ import annotations

import difflib
from pathlib import Path

from hinet_simnet.errors import BadScenario, NotAtThisLevel
from hinet_simnet.scenario.model import LEVELS, Scenario

TEXT_BYTES_MAX = 1 << 22
NEXT = "name a scenario file (SPEC.md, part 10), or one of: hinet-node simnet list"


def library() -> dict[str, Path]:
    """The ready scenarios: name to file."""
    import hinet_simnet

    folder = Path(hinet_simnet.__path__[0]) / "library"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def find(name: str) -> Scenario:
    """A scenario by path or by name. Errors: `BadScenario`."""
    ready = library()
    path = Path(name)
    if name in ready and not path.is_file():
        path = ready[name]
    elif path.is_dir() and name:
        raise BadScenario(f"{name} is a folder", next_step=f"name a TOML file in it: {path / 'NAME.toml'}")
    elif path.exists() and name and not path.is_file():
        raise BadScenario(f"{name} is no ordinary file", next_step=NEXT)
    elif not path.is_file():
        near = difflib.get_close_matches(path.stem, ready, n=3, cutoff=0.4)
        words = f"; near to it: {', '.join(near)}" if near else ""
        raise BadScenario(f"there is no scenario and no file {name!r}{words}",
                          next_step=f"hinet-node simnet run {near[0]}" if near else "hinet-node simnet list")
    if path.stat().st_size > TEXT_BYTES_MAX:
        raise BadScenario(f"larger than {TEXT_BYTES_MAX >> 20} MiB", where=str(path), next_step=NEXT)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadScenario("it is no UTF-8 text", where=str(path), next_step=NEXT) from error
    return from_text(text, file=name)


def from_text(text: str, *, file: str) -> Scenario:
    """A scenario from its TOML. Errors: `BadScenario`."""
    from hinet_simnet.scenario.parse import parse

    return parse(text, file=file)


def refuse_level(scenario: Scenario, level: str) -> None:
    """Errors: `NotAtThisLevel` unless the scenario can be played at this level."""
    if level not in scenario.levels:
        raise NotAtThisLevel(f"{scenario.name} can't be played at level {level!r}: it is for "
                             f"{', '.join(scenario.levels)}",
                             next_step=f"hinet-node simnet run {scenario.file or scenario.name} --level "
                                       f"{scenario.levels[0]}")


def level_of(word: str) -> str:
    """A level by its name. Errors: `UsageError`."""
    from hinet_node.errors import UsageError

    if word not in LEVELS:
        raise UsageError(f"there is no level {word!r}", next_step=f"one of: {', '.join(LEVELS)}")
    return word


def generate(seed: int) -> Scenario:
    """A random scenario, the same one for the same seed; its `text` is its TOML."""
    from hinet_simnet.scenario.generate import generate as made

    return made(seed)


def as_toml(scenario: Scenario) -> str:
    """A scenario's values as TOML that `from_text` reads back."""
    from hinet_simnet.scenario.write import to_toml

    return to_toml(scenario)
