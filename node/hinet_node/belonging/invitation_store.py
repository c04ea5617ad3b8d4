"""Invitations on disk: `invitations/<selector>`, 0600, each change durable before anything acts on it.

A code's time is measured by the monotonic clock and ends with the agent's run; a ticket's by the wall clock, and it
outlives a restart. The rules of use are `hinet_protocol.invitations`'. A record that is over loses its secret and stays
a while, so that a late joiner hears what became of its code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hinet_node.errors import NodeError
from hinet_node.home import INVITATIONS
from hinet_node.ports import Clock, Disk
from hinet_protocol import canonical
from hinet_protocol.chain import Chain
from hinet_protocol.errors import ProtocolError
from hinet_protocol.invitations import Invitation

RECORDS_MAX = 64
NO_SECRET = b"\0"


@dataclass(frozen=True)
class Policy:
    """Who may join without asking: everybody with the code (`accept`), or the device of one fingerprint."""

    accept: bool = False
    fingerprint: str | None = None

    def decide(self, fingerprint: str) -> bool | None:
        """True or False when the policy settles it, None to ask the owner."""
        if self.fingerprint is not None:
            return fingerprint.replace("-", "").upper() == self.fingerprint.replace("-", "").upper()
        return True if self.accept else None


class InvitationStore:
    """All records of this device, newest last."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._records: dict[str, Invitation] = {}
        self._policies: dict[str, Policy] = {}

    def load(self, chain: Chain) -> list[str]:
        """Read the records of former runs, and settle those that a kill left half done; what the owner should know of
        them, a line each.

        A consumed record whose joiner the chain names is certified; otherwise no certificate ever left, and a ticket
        opens again. Codes of former runs are cancelled. A damaged record is removed: it can't be used.
        """
        news = []
        for name in self._disk.list(INVITATIONS):
            try:
                record, policy = _decode(self._disk.read(f"{INVITATIONS}/{name}"))
                if record.selector != name:
                    raise ProtocolError("An invitation record lies under another name than its own.")
            except (ProtocolError, FileNotFoundError):
                self._disk.remove(f"{INVITATIONS}/{name}")
                continue
            settled = record
            if record.state == "consumed":
                known = record.joiner is not None and chain.device(record.joiner) is not None
                settled = record.certify() if known else record.release()
            if settled.carrier == "code":
                settled = settled.cancel()
            self._records[record.selector], self._policies[record.selector] = settled, policy
            if settled != record:
                self.save_if_possible(settled)
                news.append(_told(record, settled, chain))
        self._forget_old()
        return news

    def add(self, record: Invitation, policy: Policy) -> None:
        """A new record; durable when this returns. Errors: `NoSpace`."""
        self._policies[record.selector] = policy
        self._records.pop(record.selector, None)
        self.save(record)
        self._forget_old()

    def save(self, record: Invitation) -> None:
        """The next state of a record; durable when this returns."""
        if record.state in ("certified", "burned", "cancelled"):
            record = replace(record, secret=NO_SECRET)
        self._disk.write_atomic(f"{INVITATIONS}/{record.selector}", _encode(record, self.policy(record.selector)),
                                private=True)
        self._records[record.selector] = record

    def save_if_possible(self, record: Invitation) -> None:
        """`save`; on a full disk in memory only. A stranger's wrong try must not end the agent, and the next start
        settles what the disk missed. Not for a record that is consumed: that is durable before anything acts on it."""
        assert record.state != "consumed", "what is consumed is saved"
        try:
            self.save(record)
        except NodeError:
            self._records[record.selector] = record
            if record.state in ("burned", "cancelled"):
                self._disk.remove(f"{INVITATIONS}/{record.selector}")  # else a ticket would be open again after a start

    def get(self, selector: str) -> Invitation | None:
        return self._records.get(selector)

    def policy(self, selector: str) -> Policy:
        return self._policies.get(selector, Policy())

    def open_records(self) -> list[Invitation]:
        """Those that a joiner may still use."""
        return [record for record in self._records.values() if record.state == "open" and self.left_s(record) > 0]

    def left_s(self, record: Invitation) -> float:
        """Seconds until it expires, by the clock of its kind; negative after that."""
        code = record.carrier == "code"
        return record.expires_at_s - (self._clock.monotonic_s() if code else self._clock.now_unix_s())

    def in_monotonic_time(self) -> tuple[Invitation, ...]:
        """All records with their expiry in monotonic seconds, which is what the join machine is told."""
        now_s = self._clock.monotonic_s()
        return tuple(replace(record, expires_at_s=max(0, int(now_s + self.left_s(record))))
                     for record in self._records.values())

    def follow(self, record: Invitation) -> Invitation:
        """The stored record brought to the state of one from `in_monotonic_time`."""
        stored = self._records[record.selector]
        return replace(stored, failures=record.failures, state=record.state, joiner=record.joiner)

    def _forget_old(self) -> None:
        over = [name for name, record in self._records.items() if record.state != "open" or self.left_s(record) <= 0]
        for name in over[:max(0, len(self._records) - RECORDS_MAX)]:
            self._disk.remove(f"{INVITATIONS}/{name}")
            del self._records[name]
            self._policies.pop(name, None)


def _told(record: Invitation, settled: Invitation, chain: Chain) -> str:
    """What became of an invitation that the last run left unfinished, and what to do."""
    if settled.state == "certified":
        device = chain.device(record.joiner) if record.joiner is not None else None
        name = device.name if device is not None else "a device"
        return (f"{name} got its certificate just before the last stop; if it does not come (hinet-node devices), let "
                "it join again with a new code: hinet-node invite")
    if settled.state == "open":
        return "a join was cut off by the last stop before anything was granted; its ticket is valid again"
    return "an invitation ended with the last stop and nobody used it; make a new one: hinet-node invite"


def _encode(record: Invitation, policy: Policy) -> bytes:
    return canonical.encode({"record": record.to_bytes(), "accept": policy.accept, "fingerprint": policy.fingerprint})


def _decode(raw: bytes) -> tuple[Invitation, Policy]:
    found = canonical.decode(raw)
    if not isinstance(found, dict) or not isinstance(found.get("record"), bytes):
        raise ProtocolError("An invitation record is damaged.")
    fingerprint = found.get("fingerprint")
    return Invitation.from_bytes(found["record"]), Policy(
        found.get("accept") is True, fingerprint if isinstance(fingerprint, str) else None)
