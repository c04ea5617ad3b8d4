"""`hinet-node version`."""

from __future__ import annotations


def version() -> None:
    """Versions of this program and of what it speaks."""
    import platform

    from hinet_node.cli import output

    number, python, machine = installed_version(), platform.python_version(), platform.platform(terse=True)
    output.emit("hinet.version/1", {"version": number, "protocol": 1, "python": python, "platform": machine},
                [f"hinet-node {number}, protocol 1", f"Python {python} on {machine}"])


def installed_version() -> str:
    """The installed package's version; `source` when run from a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as read_version

    try:
        return read_version("hinet-node")
    except PackageNotFoundError:
        return "source"
