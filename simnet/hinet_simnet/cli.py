"""`hinet-node simnet …`: scenarios played, replayed, shrunk, soaked, swept and reported."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Run many nodes on one machine, in virtual time.")


@app.callback()
def simnet() -> None:
    """Run many nodes on one machine, in virtual time."""
