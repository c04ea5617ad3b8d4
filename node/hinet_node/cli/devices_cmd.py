"""`hinet-node devices [list|show|rename]`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from hinet_node.cli import output, root
from hinet_node.cli.device_table import behind_text, device_table, state_text

app = root.group("List the household's devices, show or rename one.")


@app.callback(invoke_without_command=True)
def default(ctx: typer.Context) -> None:
    """List the household's devices, show or rename one."""
    if ctx.invoked_subcommand is None:
        list_devices()


@app.command("list")
def list_devices(everything: Annotated[bool, typer.Option("--all", help="Also the revoked ones.")] = False) -> None:
    """All devices, with role, tier and whether they are connected."""
    devices = known_devices()
    output.emit("hinet.devices/1", {"devices": devices}, lambda: device_table(devices, revoked=everything))


@app.command()
def show(device: Annotated[str, typer.Argument(help="Its name, or the beginning of its key.")]) -> None:
    """One device in full."""
    found = pick(known_devices(), device)
    output.emit("hinet.device/1", found, lambda: _lines(found))


@app.command()
def rename(device: Annotated[str, typer.Argument(metavar="OLD", help="Its name, fingerprint, or the beginning of its "
                                                                     "key.")],
           name: Annotated[str, typer.Argument(metavar="NEW", help="What it shall be called, everywhere.")]) -> None:
    """Give a device another name. Needs an admin device, and another than the one that is renamed if there are two."""
    from hinet_node.cli.agent_call import call

    done = call("device.rename", {"device": device, "name": name})
    former, now = output.clean(done["former"]), output.clean(done["name"])
    output.emit("hinet.device-rename/1", done, [f"{former} is called {now} from now on." if former != now else
                                                f"{now} is called so already."])


def known_devices() -> list[dict[str, Any]]:
    """The devices as the agent knows them now, or as the home's chain does when no agent runs."""
    from hinet_node.cli.agent_call import connect
    from hinet_node.errors import AgentNotRunning

    try:
        with connect() as client:
            found: list[dict[str, Any]] = client.call("devices", timeout_s=5.0)["devices"]
            return found
    except AgentNotRunning:
        from hinet_node.cli.local_work import local_status

        devices: list[dict[str, Any]] = local_status()["devices"]
        return devices


def pick(devices: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """The device of this name, fingerprint or key prefix. Errors: `UsageError` when none or several fit."""
    from hinet_node.errors import UsageError

    wanted = text.casefold()
    fits = [device for device in devices if device["name"].casefold() == wanted
            or device["fingerprint"].casefold() == wanted
            or (len(wanted) >= 4 and device["public"].startswith(wanted))]
    live = [device for device in fits if device["state"] not in ("revoked", "void")]
    chosen = live if len(live) == 1 else fits
    if len(chosen) != 1:
        what = f"more than one device fits {text!r}" if fits else f"the household has no device {text!r}"
        raise UsageError(what, next_step="see their names: hinet-node devices", code="E_NO_SUCH_DEVICE")
    return chosen[0]


def _lines(device: dict[str, Any]) -> list[str]:
    rows = [["name", output.style(output.clean(device["name"]), "bold")], ["role", device["role"]],
            ["tier", device["tier"]], ["state", state_text(device)], ["fingerprint", device["fingerprint"]],
            ["key", device["public"]], ["added", output.time_text(device["added_unix_s"])],
            ["certificate", _certificate(device["expires_unix_s"])],
            ["last seen", _last_seen(device)], ["address", _address(device)],
            ["version", output.clean(device["version"] or "-")],
            ["backends", ", ".join(output.clean(name) for name in device["backends"]) or "-"],
            ["memory", output.size_text(device["memory_bytes"]) if device["memory_bytes"] else "-"],
            ["bases", ", ".join(digest[:16] for digest in device["bases"]) or "-"],
            ["vault", _vault(device)]]
    if device["revoke_reason"]:
        rows.append(["revoked", output.clean(device["revoke_reason"])])
    if device["unaware_of"]:
        rows.append(["to be told", f"that {output.clean(', '.join(device['unaware_of']))} is revoked"])
    return output.table(rows)


def _certificate(expires_unix_s: int | None) -> str:
    if expires_unix_s is None:
        return "does not end"
    days = int((expires_unix_s - time.time()) // 86_400)
    until = output.time_text(expires_unix_s)
    if days < 0:
        return output.style(f"ran out on {until}: the rights of a keeper are left", "red")
    left = f"ends {until}, in {days} {'day' if days == 1 else 'days'}"
    return output.style(left, "yellow") if days < 30 else left


def _vault(device: dict[str, Any]) -> str:
    if device["behind"] is None:
        return "-"
    return f"behind by {behind_text(device)}" if device["behind"]["heads"] else output.style("in step", "green")


def _last_seen(device: dict[str, Any]) -> str:
    if device["state"] == "this":
        return "now"
    seen = device["last_seen_unix_s"]
    return "never" if seen is None else f"{output.time_text(seen)}, {output.ago_text(time.time() - seen)}"


def _address(device: dict[str, Any]) -> str:
    if not device["address"]:
        return "-"
    via = f", {device['via']}" if device["via"] else ""
    return f"{output.address_text(device['address'])}{via}"
