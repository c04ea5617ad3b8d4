"""`hinet-node version`."""

from __future__ import annotations


def version() -> None:
    """Versions of this program and of what it speaks."""
    import platform

    from hinet_node import __version__
    from hinet_node.cli import output

    python = platform.python_version()
    output.emit("hinet.version/1", {"version": __version__, "python": python, "platform": platform.platform()},
                [f"hinet-node {__version__}", f"python {python} on {platform.platform()}"])
