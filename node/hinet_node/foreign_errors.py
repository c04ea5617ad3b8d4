"""Errors of the other parts, in the node's terms: an exit code and the next thing to type.

`hinet_protocol` knows no command line and `hinet_tiers` no household; their errors carry a stable code, which is mapped
here once, for the command line and for the agent's local API alike. SPEC "Exit codes".
"""

from __future__ import annotations

from hinet_node.errors import NodeError

NEW_CODE = "ask for a new code: on a device of the household type  hinet-node invite"

_PROTOCOL: dict[str, tuple[int, str | None]] = {
    "E_PHRASE": (2, "check the words against your paper, in order"),
    "E_KEY": (7, "check the path; the 24 words on paper work as well"),
    "E_PASSPHRASE": (4, "type it again; the 24 words on paper work as well: --words-file FILE, or the prompt"),
    "E_CODE_MALFORMED": (2, "type the code as it was shown: hinet-node join NUMBER-WORD-WORD-WORD"),
    "E_TICKET_MALFORMED": (2, "copy the whole ticket, or use the code: hinet-node join CODE"),
    "E_CODE_WRONG": (4, "check each word and type it again: hinet-node join CODE"),
    "E_CODE_UNKNOWN": (5, NEW_CODE),
    "E_INVITATION": (4, NEW_CODE),
    "E_INVITATION_EXPIRED": (4, NEW_CODE),
    "E_INVITATION_USED": (6, NEW_CODE),
    "E_INVITATION_BURNED": (4, NEW_CODE),
    "E_JOIN": (5, NEW_CODE),
    "E_JOIN_DECLINED": (4, "ask the person at the other device, then: hinet-node join CODE"),
    "E_JOIN_INTERRUPTED": (5, NEW_CODE),
    "E_VERSION": (5, "update the older of the two devices; see: hinet-node version"),
    "E_STRANGER": (4, "join the household first: hinet-node join CODE"),
    "E_REVOKED": (4, "join again as a new device: set another --home, then hinet-node join CODE"),
    "E_CLONE": (6, "stop one of the two copies and give it keys of its own: hinet-node init --rekey"),
    "E_BUSY": (75, "try again in a moment"),
    "E_SILENT": (5, "see who is reachable: hinet-node status"),
    "E_VIOLATION": (5, "update the older of the two devices; see: hinet-node version"),
    "E_SESSION": (5, "see who is reachable: hinet-node status"),
    "E_MESSAGE": (5, "update the older of the two devices; see: hinet-node version"),
    "E_LAST_ADMIN": (4, "make another device an admin first: hinet-node invite --role admin"),
    "E_ENTRY_CONFLICT": (6, "choose another name"),
    "E_ENTRY_UNAUTHORISED": (4, "do this on an admin device; see: hinet-node devices"),
    "E_ENTRY_UNSUPPORTED": (1, "update this device: pip install --upgrade hinet-node"),
    "E_CHAIN_FOREIGN": (6, "see which identity this home belongs to: hinet-node status"),
}
_DEFAULT_EXIT_CODES = {"hinet_protocol": 7, "hinet_tiers": 1}


def is_foreign(error: BaseException) -> bool:
    """Whether another part of HiNet raised this error as one of its own kinds."""
    return type(error).__module__.partition(".")[0] in _DEFAULT_EXIT_CODES and hasattr(error, "code")


def as_node_error(error: BaseException) -> NodeError:
    """The error as a NodeError; an unknown kind becomes `E_UNEXPECTED` and keeps its class and text."""
    if isinstance(error, NodeError):
        return error
    text = " ".join(str(error).split())
    if not is_foreign(error):
        return NodeError(f"unexpected {type(error).__name__}: {text or 'no message'}", code="E_UNEXPECTED")
    code = str(getattr(error, "code", "E_FAILED"))
    default = _DEFAULT_EXIT_CODES[type(error).__module__.partition(".")[0]]
    exit_code, next_step = _PROTOCOL.get(code, (getattr(error, "exit_code", default), None))
    next_step = getattr(error, "next_step", None) or next_step
    return with_exit_code(NodeError(text, next_step=next_step, code=code), exit_code)


def with_exit_code(error: NodeError, exit_code: int) -> NodeError:
    """The same error, with the exit code of this one case."""
    error.exit_code = exit_code
    return error
