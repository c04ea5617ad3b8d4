"""The inviting side: opens invitations, answers joiners on `/hinet/join/1`, asks the owner, certifies.

The rules are the join machine's (`hinet_protocol.join`); records are `invitation_store`'s. Order: the invitation is
consumed on disk, then the certificate is in the chain on disk, then it is sent. One join at a time; others are told to
try again. SPEC section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from hinet_node.api import Emit, Handler, text_of, whole_number_of
from hinet_node.belonging.invitation_store import InvitationStore, Policy
from hinet_node.belonging.join_stream import JOIN_PROTOCOL, run_machine, send_message
from hinet_node.belonging.join_work import JoinWork
from hinet_node.belonging.membership import Membership
from hinet_node.config import ROLES, TIERS
from hinet_node.errors import NodeError, UsageError
from hinet_node.ports import Announcement, Connection, Ports, Stream
from hinet_node.sessions.addresses import parse_address
from hinet_protocol import join, limits
from hinet_protocol.errors import InvitationBurned, InvitationExpired, JoinDeclined, ProtocolError
from hinet_protocol.identity import fingerprint
from hinet_protocol.invitations import Code, Invitation, Ticket, code_entropy_bytes, make_code, ticket_secret_bytes
from hinet_protocol.join.secrets import join_entropy_bytes

__all__ = ["JOIN_PROTOCOL", "PAIR_SERVICE", "Inviter"]

PAIR_SERVICE = "_hinet-pair._tcp"
EXPIRES_S_MAX = 7 * 86_400
EXPIRES_S_MIN = 10
ADDRESS_POLL_S = 3.0


@dataclass
class _Open:
    """An invitation that somebody may be waiting at. `told` gets its news; `decision` the owner's answer."""

    selector: str
    told: trio.MemorySendChannel[dict[str, Any]]
    news: trio.MemoryReceiveChannel[dict[str, Any]]
    watched: bool
    decision: Callable[[bool], None] | None = None
    asked: str = ""
    ended: trio.Event = field(default_factory=trio.Event)

    def tell(self, news: dict[str, Any]) -> None:
        try:
            self.told.send_nowait(news)
        except trio.WouldBlock:
            return  # nobody reads: the invitation was opened without waiting


class Inviter:
    """One per agent. Its verbs: invite, invite.decide, invite.cancel, invite.list."""

    def __init__(self, ports: Ports, membership: Membership, log: Callable[[str], None],
                 addresses: Callable[[], Sequence[str]], *, discover: bool = True) -> None:
        self._ports = ports
        self._membership = membership
        self._log = log
        self._addresses = addresses
        self._discover = discover
        self._store = InvitationStore(ports.disk, ports.clock)
        self._open: dict[str, _Open] = {}
        self._joining = False
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Announce open codes and let them expire, until cancelled."""
        for line in self._store.load(self._membership.chain()):
            self._log(line)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for record in self._store.open_records():
                self._attend(record, watched=False)
            task_status.started()
            await trio.sleep_forever()

    def verbs(self) -> dict[str, Handler]:
        """The local API's verbs about invitations."""
        return {"invite": self._invite, "invite.decide": self._decide, "invite.cancel": self._cancel,
                "invite.list": self._list}

    def open_invitations(self) -> list[dict[str, Any]]:
        """The open ones, without their secrets."""
        return [{"selector": record.selector, "carrier": record.carrier, "role": record.role, "tier": record.tier,
                 "left_s": int(self._store.left_s(record)), "tries_left": record.tries_left}
                for record in self._store.open_records()]

    # ---- verbs ----------------------------------------------------------------------------------------------------

    async def _invite(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        self._membership.require_admin("invite")
        policy = Policy(args.get("accept") is True, args.get("fingerprint") or None)
        wait = args.get("wait") is not False
        if not wait and not policy.accept and policy.fingerprint is None:
            raise UsageError("an invitation that nobody waits at needs an answer in advance",
                             next_step="add --yes or --approve-fingerprint ABCD-EFGH")
        addresses = self._addresses_at(args.get("hosts"))
        record, shown = self._new_record(args, addresses)
        self._store.add(record, policy)
        entry = self._attend(record, watched=wait, hosts=args.get("hosts"))
        first = {"state": "waiting", **shown, "role": record.role, "tier": record.tier, "carrier": record.carrier,
                 "selector": record.selector, "expires_in_s": int(self._store.left_s(record)),
                 "addresses": list(addresses)}
        self._log(f"an invitation is open for a {record.role} device ({record.carrier})")
        if not wait:
            return first
        emit(first)
        try:
            async for news in entry.news:
                if "error" in news:
                    raise news["error"]
                if news["state"] == "joined":
                    return news
                emit(news)
        finally:
            self._withdraw(record.selector)
        raise AssertionError("the news of an invitation end with a join or an error")

    async def _decide(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        entry = self._open.get(text_of(args, "selector"))
        if entry is None or entry.decision is None or entry.asked != text_of(args, "fingerprint"):
            raise NodeError("nobody waits for this answer any more", next_step="see: hinet-node devices")
        entry.decision(args.get("accept") is True)
        return {}

    async def _cancel(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        selector = text_of(args, "selector")
        known = self._store.get(selector) is not None
        self._withdraw(selector)
        return {"cancelled": known}

    async def _list(self, args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
        return {"invitations": self.open_invitations()}

    def _addresses_at(self, hosts: Any) -> tuple[str, ...]:
        """Where joiners can come to now; with `hosts` only at these IP addresses. Errors: `UsageError` for none."""
        if hosts is None:
            return tuple(self._addresses())
        found = tuple(text for text in self._addresses() if parse_address(text).host in hosts)
        if not found:
            raise UsageError("this device listens at no address of that interface",
                             next_step="see where it listens: hinet-node status   or start it there: hinet-node run "
                                       "--interface NAME")
        return found

    def _new_record(self, args: Mapping[str, Any], addresses: Sequence[str]) -> tuple[Invitation, dict[str, str]]:
        role, tier = text_of(args, "role", "member"), args.get("tier") or None
        if role not in ROLES:
            raise UsageError(f"there is no role {role!r}", next_step=f"--role {', '.join(ROLES)}")
        if tier is not None and tier not in TIERS:
            raise UsageError(f"there is no tier {tier!r}", next_step=f"--tier {', '.join(TIERS)}")
        expires_s = whole_number_of(args, "expires_s", limits.code_lifetime_s)
        if not EXPIRES_S_MIN <= expires_s <= EXPIRES_S_MAX:
            raise UsageError(f"an invitation lasts from {EXPIRES_S_MIN} s to 7 days",
                             next_step="for example --expires 10m")
        clock, randomness = self._ports.clock, self._ports.randomness
        if text_of(args, "carrier", "code") == "ticket":
            ticket = Ticket(secret=randomness.draw(ticket_secret_bytes), identity_id=self._membership.identity_id,
                            inviter=self._membership.device_public, role=role, tier=tier,
                            addresses=tuple(addresses)[:limits.ticket_addresses_max],
                            expires_s=int(clock.now_unix_s()) + expires_s)
            return Invitation.for_ticket(ticket), {"ticket": ticket.text}
        code = self._free_code()
        record = Invitation.for_code(code, role=role, tier=tier, expires_at_s=int(clock.monotonic_s()) + expires_s)
        return record, {"code": code.text}

    def _free_code(self) -> Code:
        taken = {record.selector for record in self._store.open_records()}
        for _ in range(100):
            code = make_code(self._ports.randomness.draw(code_entropy_bytes))
            if code.selector not in taken:
                return code
        raise UsageError("too many invitations are open", next_step="wait until they expire, or restart the agent")

    # ---- an open invitation ---------------------------------------------------------------------------------------

    def _attend(self, record: Invitation, *, watched: bool, hosts: Any = None) -> _Open:
        assert self._nursery is not None, "invitations need a running inviter"
        told, news = trio.open_memory_channel[dict[str, Any]](64)
        entry = _Open(record.selector, told, news, watched)
        self._open[record.selector] = entry
        self._nursery.start_soon(self._tend, entry, record, hosts)
        return entry

    async def _tend(self, entry: _Open, record: Invitation, hosts: Any) -> None:
        """Announce a code until the invitation is over or expires."""
        with trio.move_on_after(self._store.left_s(record)) as scope:
            if record.carrier == "code" and self._discover:
                await self._announce(entry, f"{record.selector}-{self._ports.randomness.draw(2).hex()}", hosts)
            await entry.ended.wait()
        if scope.cancelled_caught and not entry.ended.is_set():
            self._log("an invitation has expired")
            self._end(entry, InvitationExpired("The invitation has expired; nobody used it. Make a new one."))

    async def _announce(self, entry: _Open, name: str, hosts: Any) -> None:
        """Until it has ended; anew when this device's addresses change."""
        while not entry.ended.is_set():
            listening = tuple(self._addresses())
            chosen = tuple(text for text in listening if hosts is None or parse_address(text).host in hosts)
            async with self._ports.discovery.announce(Announcement(name, PAIR_SERVICE, chosen, {})):
                while tuple(self._addresses()) == listening and not entry.ended.is_set():
                    with trio.move_on_after(ADDRESS_POLL_S):
                        await entry.ended.wait()

    def _withdraw(self, selector: str) -> None:
        record, entry = self._store.get(selector), self._open.get(selector)
        if record is not None and record.state == "open" and self._store.left_s(record) > 0:
            # An expired one stays so: a late joiner is told that, and no other story.
            self._store.save_if_possible(record.cancel())
        if entry is not None:
            self._end(entry, InvitationExpired("The invitation was withdrawn."))

    def _end(self, entry: _Open, error: Exception | None) -> None:
        if entry.decision is not None:
            entry.decision(False)
        if error is not None:
            entry.tell({"error": error})
        entry.ended.set()
        if self._open.get(entry.selector) is entry:
            del self._open[entry.selector]

    # ---- a join ---------------------------------------------------------------------------------------------------

    async def handle(self, connection: Connection, stream: Stream) -> None:
        """Serve one joiner's stream to its end."""
        if self._joining:
            await send_message(stream, join.busy_refusal())
            await stream.close()
            return
        self._joining = True
        try:
            await self._serve_joiner(connection, stream)
        finally:
            self._joining = False

    async def _serve_joiner(self, connection: Connection, stream: Stream) -> None:
        machine = join.Inviter.start(
            self._membership.chain(), self._store.in_monotonic_time(), public=self._membership.device_public,
            peer=connection.remote_public, entropy=self._ports.randomness.draw(join_entropy_bytes),
            now_s=self._ports.clock.monotonic_s(), inviter_name=self._membership.name)
        work = JoinWork(self._store, self._membership, self._ports, self._ask)
        outcome = await run_machine(machine, (), stream, self._ports.clock, work.perform)
        entry = self._open.get(work.selector)
        who = fingerprint(connection.remote_public)
        if isinstance(outcome, join.Failed):
            self._log(f"a join by {who} from {connection.remote_address} failed: {outcome.error}")
        if work.certified is not None:
            self._log(f"{work.certified['name']} joined as {work.certified['role']}, {work.certified['tier']}")
            if entry is not None:
                confirmed = isinstance(outcome, join.Finished)
                entry.tell({"state": "joined", "device": work.certified, "confirmed": confirmed})
                self._end(entry, None)
        elif entry is not None and isinstance(outcome, join.Failed):
            self._tell_failure(entry, outcome.error)

    async def _ask(self, selector: str, question: join.AskApproval) -> bool:
        """The policy's answer, or the owner's."""
        settled = self._store.policy(selector).decide(question.fingerprint)
        entry = self._open.get(selector)
        if settled is not None or entry is None or not entry.watched:
            return bool(settled)
        answered, answer = trio.Event(), False

        def decide(accept: bool) -> None:
            nonlocal answer
            answer = accept
            answered.set()

        entry.decision, entry.asked = decide, question.fingerprint
        try:
            entry.tell({"state": "asking", "selector": selector, "name": question.name, "role": question.role,
                        "fingerprint": question.fingerprint, "tier": question.tier})
            await answered.wait()
        finally:
            entry.decision, entry.asked = None, ""
        return answer

    def _tell_failure(self, entry: _Open, error: ProtocolError) -> None:
        record = self._store.get(entry.selector)
        if record is not None and record.state == "burned":
            self._end(entry, InvitationBurned("Three wrong tries closed this invitation. Make a new one."))
        elif isinstance(error, JoinDeclined):
            self._withdraw_declined(entry, error)
        else:
            entry.tell({"state": "failed-try", "what": str(error), "tries_left": record.tries_left if record else 0})

    def _withdraw_declined(self, entry: _Open, error: JoinDeclined) -> None:
        record = self._store.get(entry.selector)
        if record is not None:
            self._store.save_if_possible(record.cancel())
        self._end(entry, error)
