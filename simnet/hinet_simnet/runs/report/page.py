"""Writes a story as one HTML page: no network, no file beside it. Leaves what is in a story to `gather`.

Every text of a trace is escaped here (or put into the page as JSON, which the script shows as text only). The page's
own policy lets nothing run but the script below, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from hinet_simnet.runs.report.gather import OTHERS, Lane, Story
from hinet_simnet.runs.tracefile import finite

LANES_MAX = 48
LINKS_SHOWN = 25
MATRIX_NODES_MAX = 16
FINDINGS_SHOWN = 200
HOUSEHOLDS_MAX = 12
SCENARIO_CHARACTERS_MAX = 60_000
HERE = Path(__file__).parent
LEGEND = (
    ("key up", "", "running (deeper: more bytes sent)"), ("key frozen", "", "frozen"),
    ("key shade", "", "partition or cut"), ("mark join", "●", "joined"), ("mark start", "▲", "started, thawed"),
    ("mark kill", "✕", "killed, crashed"), ("mark act", "◆", "disk, clock, clone, lie, freeze"),
    ("mark call", "▪", "asked"), ("mark bad", "▼", "finding"))


def page(story: Story) -> str:
    """The whole page."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"{story.header.scenario}, seed {story.header.seed}"
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">', f"<title>{_text(title)}</title>",
        f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style></head><body><main>",
        *_head(story), *_findings(story), *_timeline(story), *_curves(story), *_links(story), *_rounds(story),
        *_scenario(story), "</main>",
        f'<script type="application/json" id="story">{_json(_drawn(story))}</script>',
        f"<script>{script}</script></body></html>", ""])


def _text(value: Any) -> str:
    """Text of a trace, safe anywhere in the page. Lone surrogates, which UTF-8 lacks, become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"), quote=True)


def _json(data: Any) -> str:
    """JSON that can't end the script element that it stands in. ASCII only, so nothing in it is special to HTML."""
    text = json.dumps(finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ---- the parts of the page -------------------------------------------------------------------------------------------


def _head(story: Story) -> Iterator[str]:
    header, outcome = story.header, story.outcome
    if story.findings:
        word, style = f"{len(story.findings):,} finding{'' if len(story.findings) == 1 else 's'}", "bad"
    elif outcome is None:
        word, style = "killed before its end", "unsure"
    elif outcome.interrupted:
        word, style = "interrupted", "unsure"
    else:
        word, style = "ok", "good"
    yield f'<header><h1>{_text(header.scenario)}</h1><span class="verdict {style}">{word}</span></header>'
    if story.broken:
        yield f'<p class="note bad">The file is damaged; this is as far as it goes: {_text(story.broken)}</p>'
    if story.cut:
        yield f'<p class="note">The file holds only the first {story.events:,} events: its limit was reached.</p>'
    facts = [("seed", str(header.seed)), ("level", header.level), ("simulated", seconds_text(story.end_s)),
             ("nodes", f"{len(story.lanes):,}"), ("events", f"{story.events:,}"),
             ("messages", f"{story.message_count:,}"),
             ("bytes", size_text(sum(lane.bytes_sent for lane in story.lanes.values())))]
    if outcome is not None:
        facts.append(("took", seconds_text(outcome.wall_s)))
    yield '<dl class="facts">'
    yield from (f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
    yield "</dl>"
    made_by, path = header.program, shlex.quote(story.path)
    yield f"<pre class=\"command\">hinet-node simnet replay {_text(path)}</pre>"
    yield (f'<p class="small">Made by hinet-node {_text(made_by.get("version"))}, source '
           f'{_text(made_by.get("source"))}, Python {_text(made_by.get("python"))}'
           f'{f"; digest <code>{_text(outcome.digest)}</code>" if outcome is not None and outcome.digest else ""}</p>')


def _findings(story: Story) -> Iterator[str]:
    if not story.findings:
        return
    yield '<section><h2>Findings</h2><div class="wide"><table><thead><tr><th>at</th><th>checker</th><th>node</th>' \
          "<th>what</th></tr></thead><tbody>"
    for finding in story.findings[:FINDINGS_SHOWN]:
        trace = (f"<details><summary>traceback</summary><pre>{_text(finding.traceback)}</pre></details>"
                 if finding.traceback else "")
        yield (f'<tr><td class="number">{_text(seconds_text(finding.at_s))}</td><td class="bad">'
               f"{_text(finding.checker)}</td><td>{_text(finding.node or '–')}</td><td>{_text(finding.message)}{trace}"
               "</td></tr>")
    yield "</tbody></table></div>"
    if len(story.findings) > FINDINGS_SHOWN:
        yield f'<p class="small">and {len(story.findings) - FINDINGS_SHOWN:,} more</p>'
    yield "</section>"


def _timeline(story: Story) -> Iterator[str]:
    if not story.lanes:
        return
    yield '<section><h2>Timeline</h2><div class="tools"><button id="in" type="button">Zoom in</button>'
    yield '<button id="out" type="button">Zoom out</button>'
    yield '<button id="back" type="button" aria-label="Earlier">←</button>'
    yield '<button id="on" type="button" aria-label="Later">→</button><button id="all" type="button">Whole run</button>'
    yield '<span class="small" id="range"></span></div><div id="timeline" class="drawing"></div>'
    yield '<p class="legend small">'
    for style, sign, words in LEGEND:
        yield f'<span><i class="{style}">{sign}</i>{words}</span>'
    yield "<span>Drag over the timeline to zoom in.</span></p></section>"


def _curves(story: Story) -> Iterator[str]:
    if story.curves:
        yield '<section><h2>Over time</h2><div id="curves" class="curves"></div></section>'


def _links(story: Story) -> Iterator[str]:
    if not story.links:
        return
    ranked = sorted(story.links.items(), key=lambda item: (-item[1][0], item[0]))
    most = max(1, ranked[0][1][0])
    yield f'<section><h2>Bytes per link</h2><p class="small">{len(ranked):,} directions were used; '
    yield f"{'the busiest' if len(ranked) > LINKS_SHOWN else 'all'} of them:</p>"
    yield '<div class="wide"><table class="bars">'
    for (source, target), (size, count) in ranked[:LINKS_SHOWN]:
        yield (f"<tr><td>{_text(source)} → {_text(target)}</td><td class=\"number\">{size_text(size)}</td>"
               f'<td class="number">{count:,} msg</td><td class="bar"><i style="width:{100 * size / most:.1f}%"></i>'
               "</td></tr>")
    yield "</table></div>"
    names = sorted({name for link in story.links for name in link}, key=list(story.lanes).index
                   if all(name in story.lanes for link in story.links for name in link) else None)
    if 2 < len(names) <= MATRIX_NODES_MAX:
        yield from _matrix(story, names, most)
    yield "</section>"


def _matrix(story: Story, names: list[str], most: int) -> Iterator[str]:
    yield '<details open><summary>As a matrix (row sends to column)</summary><div class="wide"><table class="matrix">'
    yield "<tr><td></td>" + "".join(f"<th><span>{_text(name)}</span></th>" for name in names) + "</tr>"
    for source in names:
        cells = []
        for target in names:
            size, count = story.links.get((source, target), (0, 0))
            share = (size / most) ** 0.5 if size else 0
            words = f"{source} → {target}: {size_text(size)}, {count:,} messages"
            shown = size_text(size) if size else ""
            cells.append(f'<td title="{_text(words)}" style="--share:{share:.2f}">{shown}</td>')
        yield f"<tr><th>{_text(source)}</th>{''.join(cells)}</tr>"
    yield "</table></div></details>"


def _rounds(story: Story) -> Iterator[str]:
    if not story.rounds:
        return
    yield '<section><h2>Rounds</h2><div class="wide"><table>'
    yield "<thead><tr><th>at</th><th>node</th><th>what</th></tr></thead>"
    for at_s, node, words in story.rounds:
        yield (f'<tr><td class="number">{_text(seconds_text(at_s))}</td><td>{_text(node or "–")}</td>'
               f"<td>{_text(words)}</td></tr>")
    yield "</table></div></section>"


def _scenario(story: Story) -> Iterator[str]:
    text = story.header.text
    short = text[:SCENARIO_CHARACTERS_MAX]
    yield f"<section><details><summary>The scenario ({len(text):,} characters of TOML)</summary><pre>{_text(short)}"
    yield f"{'…' if len(short) < len(text) else ''}</pre></details></section>"


# ---- what the script draws -------------------------------------------------------------------------------------------


def _drawn(story: Story) -> dict[str, Any]:
    lanes, others = chosen_lanes(story)
    numbers = {lane.name: place for place, lane in enumerate(lanes)}
    messages = [[round(at_s, 6), numbers[source], numbers[target], size, channel]
                for at_s, source, target, size, channel in story.messages
                if source in numbers and target in numbers] if story.message_count == len(story.messages) else []
    rows = [_lane_row(lane) for lane in lanes]
    if others:
        width = max(len(lane.sent) for lane in others)
        sums = [sum(lane.sent[place] for lane in others if place < len(lane.sent)) for place in range(width)]
        rows.append({"name": f"{len(others):,} more", "of": "drawn as one", "spans": [[0, story.end_s, "up"]],
                     "marks": [], "sent": sums})
    return {"end": story.end_s, "bin": story.bin_s, "lanes": rows, "messages": messages,
            "shades": [[since_s, until_s, words] for since_s, until_s, words in story.shades],
            "curves": [[name, points] for name, points in story.curves.items()],
            "findings": [[finding.at_s, f"{finding.checker}: {finding.message}"[:300]]
                         for finding in story.findings[:FINDINGS_SHOWN]]}


def _lane_row(lane: Lane) -> dict[str, Any]:
    household_and_tier = " ".join(word for word in (lane.household, lane.tier) if word)
    return {"name": lane.name, "of": household_and_tier, "spans": lane.spans, "marks": lane.marks, "sent": lane.sent}


def chosen_lanes(story: Story) -> tuple[list[Lane], list[Lane]]:
    """The lanes that are drawn, in order of first start, and the others. Who had findings or faults comes first, then
    who sent most."""
    lanes = list(story.lanes.values())
    if len(lanes) <= LANES_MAX:
        return lanes, []
    places = {lane.name: place for place, lane in enumerate(lanes)}
    ranked = sorted(lanes, key=lambda lane: (lane.name == OTHERS, all(kind != "finding" for _, kind, _ in lane.marks),
                                             not lane.rare, -lane.bytes_sent, places[lane.name]))
    drawn = {lane.name for lane in ranked[:LANES_MAX - 1]}
    return [lane for lane in lanes if lane.name in drawn], [lane for lane in lanes if lane.name not in drawn]


def size_text(size: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """`1.250 s`, `3:20`, `2:05:00`, `6 d 1:00:00`."""
    if seconds < 60:
        return f"{seconds:.3f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{rest:02}" if days or hours else f"{minutes}:{rest:02}"
    return f"{days} d {clock}" if days else clock
