"""`hinet-node completion bash|zsh|fish`: print the script that completes commands, options and device names.

The words are written into the script when it is made, so that a press of TAB starts no interpreter; only the names of
devices are asked for (`completion device-names`), since they change.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hinet_node.cli import output

NAMES = "device-names"
HOW = {"bash": "hinet-node completion bash > ~/.local/share/bash-completion/completions/hinet-node",
       "zsh": "hinet-node completion zsh > ~/.zfunc/_hinet-node   (with ~/.zfunc in fpath, before compinit)",
       "fish": "hinet-node completion fish > ~/.config/fish/completions/hinet-node.fish"}


def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell to print the script "
                                                                                  "for.")]) -> None:
    """Print a script that completes what you type. Try it: source <(hinet-node completion bash)"""
    from hinet_node.errors import UsageError

    if shell == NAMES:
        for name in device_names():
            output.emit("hinet.device-name/1", {"name": name}, [name])
        return
    if shell not in HOW:
        raise UsageError(f"there is no completion for {shell!r}", next_step="hinet-node completion bash, zsh or fish")
    from hinet_node.cli import completion_scripts
    from hinet_node.cli.completion_words import all_words

    script = getattr(completion_scripts, f"{shell}_script")(all_words())
    output.emit("hinet.completion/1", {"shell": shell, "script": script}, script.rstrip("\n").split("\n"))
    if output.at_terminal():
        output.say(f"to keep it: {HOW[shell]}")


def device_names() -> list[str]:
    """Names that can be typed in one line, for the shell. Whatever goes wrong, a press of TAB shows no error."""
    from hinet_node.cli.devices_cmd import known_devices
    from hinet_node.errors import NodeError

    try:
        devices = known_devices()
    except (NodeError, OSError):
        return []
    return [device["name"] for device in devices
            if device["state"] not in ("revoked", "void") and device["name"] == output.clean_line(device["name"])]
