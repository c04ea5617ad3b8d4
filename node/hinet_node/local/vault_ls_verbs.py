"""The local API's verb vault.ls: the files' names, page by page; one level of folders with their sums, or all of them.

Leaves the order of names to `hinet_node.vault.view`; a page costs what is on it, and the sums of the folders on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from hinet_node.api import Emit, Handler, text_of, whole_number_of
from hinet_node.local.vault_verbs import described_item, name_bytes, text_name
from hinet_node.vault import Vault
from hinet_node.vault.finding import RESERVED
from hinet_node.vault.view import item_of

LIST_MAX = 5_000


def vault_ls_verbs(vault: Vault, names: Callable[[], Mapping[bytes, str]]) -> dict[str, Handler]:
    """The handler."""

    async def ls(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        """`prefix` limits the names; `level` sums up what is below the next `/`; the next page begins `after` the
        `next` of the last one."""
        prefix, after = name_bytes(text_of(args, "prefix", "")), name_bytes(text_of(args, "after", ""))
        limit = max(1, min(whole_number_of(args, "limit", LIST_MAX), LIST_MAX))
        hidden = args.get("all") is not True
        return await vault.off_loop(lambda: _page(vault, names(), prefix, after, limit, hidden,
                                                  level=args.get("level") is True))

    return {"vault.ls": ls}


def _page(vault: Vault, known: Mapping[bytes, str], prefix: bytes, after: bytes, limit: int, hidden: bool, *,
          level: bool) -> dict[str, Any]:
    rows = vault.core.shown()
    order = vault.core.view.order()
    at = max(bisect_left(order, prefix), bisect_right(order, after) if after else 0)
    items: list[dict[str, Any]] = []
    last = after
    while at < len(order) and order[at].startswith(prefix) and len(items) < limit:
        name = order[at]
        if hidden and name.startswith(RESERVED):
            at = bisect_left(order, _beyond(RESERVED), at)
            continue
        part, slash, _ = name[len(prefix):].partition(b"/")
        if level and slash:
            folder = prefix + part + b"/"
            end = bisect_left(order, _beyond(folder), at)
            inside = [rows[one][0] for one in order[at:end] if one in rows]
            items.append({"kind": "folder", "name": text_name(folder), "files": len(inside),
                          "size": sum(one.size for one in inside),
                          "time": max((one.time for one in inside), default=0)})
            at, last = end, order[end - 1]
            continue
        if name in rows:
            items.append({"kind": "file", **described_item(item_of(name, *rows[name]), known)})
        at, last = at + 1, name
    more = at < len(order) and order[at].startswith(prefix)
    return {"items": items, "more": more, "next": text_name(last)}


def _beyond(folder: bytes) -> bytes:
    """The first name that can't be in this folder."""
    return folder[:-1] + b"0"  # what follows "/"
