"""What each step calls on a stage, and how each expectation is looked up. One function for each way of acting.

Leaves when a step is taken, in whose turn, and what a refusal means to `player`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from hinet_node.errors import NodeError, UsageError
from hinet_simnet.randomness import SeededRandomness
from hinet_simnet.scenario.model import Delay, LinkSpec, Scenario, Step
from hinet_simnet.stage import Stage

PUT_BYTES = 1_000


def set_links(stage: Stage, scenario: Scenario) -> None:
    """The links as the file's head says."""
    stage.set_link(scenario.link)
    for link in scenario.links:
        stage.set_link(link)


def change_world(stage: Stage, step: Step) -> None:
    """Steps that are done at once. Errors: `NodeError`."""
    args = step.args
    match step.do:
        case "partition":
            stage.partition(*args["groups"])
        case "cut":
            for source in _ends(stage, args["from"]):
                for target in _ends(stage, args["to"]):
                    if source != target:
                        stage.cut(source, target)
        case "heal":
            stage.heal()
        case "link":
            for source, target in _pairs(args):
                stage.set_link(LinkSpec(source, target, args.get("delay") or Delay(), args.get("loss", 0.0),
                                        args.get("duplicate", 0.0), args.get("reorder", 0.0), args.get("rate")))
        case "fill_disk":
            stage.fill_disk(args["on"], free_bytes=args.get("free", 0))
        case "free_disk":
            stage.free_disk(args["on"])
        case "tear":
            stage.tear(args["on"], share=args.get("share", 0.5))
        case "clock":
            stage.set_clock(args["on"], offset_s=args["offset"])
        case _:
            raise AssertionError(f"{step.do} is no step of this kind")


def _ends(stage: Stage, name: str) -> Sequence[str]:
    return stage.names() if name == "*" else (name,)


def _pairs(args: Mapping[str, Any]) -> list[tuple[str, str]]:
    there = (args["from"], args["to"])
    return [there, (there[1], there[0])] if args.get("both") and there[0] != there[1] else [there]


async def power(stage: Stage, name: str, step: Step) -> None:
    """Steps that end, start or copy a device. Errors: `NodeError`."""
    if step.do not in ("start", "clone") and not stage.running(name):
        raise UsageError(f"no agent runs on {name}")
    match step.do:
        case "kill":
            await stage.kill(name)
        case "stop":
            await stage.stop(name)
        case "start":
            await stage.start(name)
        case "restart":
            await stage.kill(name)
            await trio.sleep(step.args.get("after", 1.0))
            await stage.start(name)
        case "freeze":
            await stage.freeze(name)
        case "thaw":
            await stage.thaw(name)
        case "clone":
            if name not in stage.names():
                raise UsageError(f"{name} was never started, so there is nothing to copy")
            await stage.clone(name, step.args["to"])
        case _:
            raise AssertionError(f"{step.do} is no step of this kind")


async def work(stage: Stage, name: str, step: Step, seed: int) -> None:
    """Steps that use the device. Errors: `NodeError`."""
    args = step.args
    match step.do:
        case "put":
            await stage.call(name, "vault.put", name=args["file"], content=_content(step, name, seed))
        case "edit":
            before = (await stage.call(name, "vault.get", name=args["file"]))["content"]
            await stage.call(name, "vault.put", name=args["file"], content=before + b"\n" + args["text"].encode())
        case "get":
            await stage.call(name, "vault.get", name=args["file"])
        case "revoke":
            await stage.call(name, "device.revoke", device=args["device"], reason=args.get("reason", "lost"))
        case "train":
            if (await stage.call(name, "base.show"))["current"] is None:
                await stage.call(name, "base.import")
            await stage.call(name, "train", recipe=args.get("recipe", "demo"))
        case "promote":
            await stage.call(name, "adapters.promote", revision=args.get("revision") or await _newest(stage, name))
        case "ask":
            await stage.call(name, "ask", question=args["question"], retrieval=args.get("retrieval", True))
        case "lie":
            await stage.lie(name, args["lie"], args.get("args") or {})
        case _:
            raise AssertionError(f"{step.do} is no step of this kind")


def _content(step: Step, name: str, seed: int) -> bytes:
    text = step.args.get("text")
    if text is not None:
        return bytes(text.encode())
    size_bytes = step.args.get("size")
    drawn = SeededRandomness(seed, f"put {name} {step.args['file']} {step.at_s}")
    return drawn.draw(PUT_BYTES if size_bytes is None else size_bytes)


async def _newest(stage: Stage, name: str) -> str:
    known = (await stage.call(name, "adapters.list"))["revisions"]
    found = [str(revision["id"]) for revision in known if revision["kind"] == "adapter"]
    if not found:
        raise UsageError(f"{name} knows no adapter yet", next_step="train on a laptop first")
    return found[-1]


async def unmet(stage: Stage, name: str, args: Mapping[str, Any]) -> str:
    """What an expectation lacks, in words; empty when it holds. Errors: `NodeError` when the device does not answer."""
    if args.get("running") is not None:
        return "" if stage.running(name) == args["running"] else (
            "its agent does not run" if args["running"] else "its agent still runs")
    if args.get("file") is not None or args.get("absent") is not None:
        return await _unmet_file(stage, name, args)
    if args.get("revisions") is not None:
        count = len((await stage.call(name, "adapters.list"))["revisions"])
        return "" if count >= args["revisions"] else f"{count} revisions, expected at least {args['revisions']}"
    return _unmet_status(await stage.call(name, "status"), args)


async def _unmet_file(stage: Stage, name: str, args: Mapping[str, Any]) -> str:
    file = args.get("file") or args["absent"]
    try:
        content = (await stage.call(name, "vault.get", name=file))["content"]
    except NodeError as error:
        if error.code == "E_NO_SUCH_FILE":
            return "" if args.get("file") is None else f"the vault shows no file {file!r}"
        raise
    if args.get("file") is None:
        return f"the vault shows the file {file!r}"
    if args.get("text") is not None and content != args["text"].encode():
        return f"the file {file!r} holds {content[:40]!r}, expected {args['text'][:40]!r}"
    return ""


def _unmet_status(status: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    connected = [device["name"] for device in status["devices"] if device["state"] == "connected"]
    if args.get("connected") is not None:
        lacking = [name for name in args["connected"] if name not in connected]
        return f"no session with {', '.join(lacking)}" if lacking else ""
    if args.get("disconnected") is not None:
        wrong = [name for name in args["disconnected"] if name in connected]
        return f"a session with {', '.join(wrong)}" if wrong else ""
    if args.get("warning") is not None:
        codes = [warning["code"] for warning in status["warnings"]]
        return "" if args["warning"] in codes else f"no warning {args['warning']} (but {', '.join(codes) or 'none'})"
    if args.get("devices") is not None:
        count = sum(device["state"] != "revoked" for device in status["devices"])
        return "" if count == args["devices"] else f"{count} devices, expected {args['devices']}"
    height = status["identity"]["height"]
    return "" if height >= args["chain_height"] else f"the chain's height is {height}, expected {args['chain_height']}"


async def end_faults(stage: Stage, scenario: Scenario, frozen: Sequence[str], off: Sequence[str],
                     start: Callable[[str], Awaitable[None]]) -> None:
    """Links heal and are as at the beginning, disks have room, devices go on."""
    supports = stage.supports()
    stage.heal()
    if any(step.do == "link" for step in scenario.steps):
        _reset_links(stage, scenario)
    if "free_disk" in supports:
        for name in _filled(scenario):
            if name in stage.names():
                stage.free_disk(name)
    for name in frozen:
        if stage.running(name):
            await stage.thaw(name)
    for name in stage.names():
        if name in off and not stage.running(name):
            await start(name)


def _filled(scenario: Scenario) -> list[str]:
    return list(dict.fromkeys(step.args["on"] for step in scenario.steps if step.do == "fill_disk"))


def _reset_links(stage: Stage, scenario: Scenario) -> None:
    """What a step changed goes back to what the head says of that pair."""
    said = {(link.source, link.target): link for link in scenario.links}
    for step in scenario.steps:
        for source, target in _pairs(step.args) if step.do == "link" else ():
            if (source, target) not in said:
                plain = scenario.link
                stage.set_link(LinkSpec(source, target, plain.delay, plain.loss, plain.duplicate, plain.reorder,
                                        plain.rate_bytes_s))
    set_links(stage, scenario)
