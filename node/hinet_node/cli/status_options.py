"""The options of `hinet-node status`, apart from `status_cmd`: without options the parser is not loaded at all."""

from __future__ import annotations

from typing import Annotated

import typer

from hinet_node.cli import status_cmd


def status(watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it anew until Ctrl-C.")] = False,
           every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How often --watch "
                                                                                "looks.")] = status_cmd.EVERY_S,
           check: Annotated[bool, typer.Option("--check", help="End with an exit code that is not 0 when something is "
                                                               "wrong: 9 no agent, 4 revoked, 1 any warning.")] = False,
           ) -> int:
    """This device, its siblings and its vault on one screen."""
    return status_cmd.show(check=check, watch=watch, every_s=every)
