"""What holds for the whole command line: the home, and how to print. Set once by `root`, read by every command."""

from __future__ import annotations

import os


class Context:
    """Global options. `home_option` is None when `--home` was not given. (A dataclass would cost 10 ms of import.)"""

    def __init__(self, *, debug: bool = False) -> None:
        self.json = False
        self.progress = False
        self.home_option: str | None = None
        self.debug = debug
        self.command = ""


current = Context()


def home_path() -> str:
    """The home folder: `--home`, then HINET_HOME, then the user's data folder."""
    chosen = current.home_option or os.environ.get("HINET_HOME")
    if chosen:
        return os.path.abspath(os.path.expanduser(chosen))  # noqa: PTH100, PTH111 - pathlib is slow to import
    from platformdirs import user_data_dir

    return user_data_dir("hinet", appauthor=False)


def typed(arguments: str) -> str:
    """`hinet-node …` as the owner has to type it for this same home."""
    if current.home_option:
        import shlex

        return f"hinet-node --home {shlex.quote(current.home_option)} {arguments}"
    return f"hinet-node {arguments}"
