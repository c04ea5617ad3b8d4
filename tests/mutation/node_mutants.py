"""Verifications of the node that must be missed when they are gone: what is on disk first, who is let in."""

from __future__ import annotations

from mutation.mutant import FALSE, Mutant, within

_MEMBERSHIP = within("node/hinet_node/belonging/membership.py", "node/belonging/test_membership.py",
                     "node/belonging/test_invite.py")
_CHAIN_STORE = within("node/hinet_node/belonging/chain_store.py", "node/belonging/test_membership.py")
_STORE = within("node/hinet_node/belonging/invitation_store.py", "node/belonging/test_invite.py")
_WORK = within("node/hinet_node/belonging/join_work.py", "node/belonging/test_join_work.py",
               "node/belonging/test_invite.py")
_INVITE = within("node/hinet_node/belonging/invite.py", "node/test_hostile_peers.py", "node/belonging/test_invite.py")
_HOME = within("node/hinet_node/home.py", "node/test_home.py", "node/test_cli.py")
_CLIENT = within("node/hinet_node/local/client.py", "node/test_hostile_socket.py", "node/local/test_client.py")
_SERVER = within("node/hinet_node/local/server.py", "node/test_hostile_socket.py")
_PEERS = within("node/hinet_node/sessions/peers.py", "node/sessions/test_peers.py")
_REVISIONS = within("node/hinet_node/learning/revisions.py", "node/learning/test_learning.py")

MUTANTS: list[Mutant] = [
    _CHAIN_STORE("that the chain was not cut short", "if chain.missing(heads) or chain.height < height:", FALSE),
    _MEMBERSHIP("that entries are on disk before they count",
                "            chain_store.append(self._disk, merged.chain, merged.added)\n", ""),
    _CHAIN_STORE("that the head is on disk", "    _write_head(disk, chain)\n    if len", "    if len"),
    _MEMBERSHIP("that a keeper is no writer", ' if device.role_at(now_s) != "keeper"}', "}"),
    _MEMBERSHIP("that only admins do what admins may",
                'if not self._chain.can_sign(self.keys.public) or self.role != "admin":', FALSE),
    _STORE("that a used invitation stays used", "settled = record.certify() if known else record.release()",
           "settled = record.release()"),
    _STORE("that codes end with their run", "settled = settled.cancel()", "pass"),
    _STORE("the fingerprint in advance",
           'return fingerprint.replace("-", "").upper() == self.fingerprint.replace("-", "").upper()', "return True"),
    _STORE("that a used secret is gone", 'if record.state in ("certified", "burned", "cancelled"):', FALSE),
    _WORK("that a failure is on disk",
          "            self._store.save_if_possible(self._store.follow(action.invitation))\n", ""),
    _WORK("that consuming is on disk", "            self._store.save(self._store.follow(action.invitation))\n"
          "        except", "            pass\n        except"),
    _WORK("that an invitation is used once",
          'if stored is None or stored.state != "open" or self._store.left_s(stored) <= 0:', FALSE),
    _INVITE("one joiner at a time", "        if self._joining:", "        if False:"),
    _HOME("that a key is the owner's alone", "    if mode & 0o077:", "    if False:"),
    _CLIENT("that the socket's folder is the owner's alone",
            "if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:", FALSE),
    _SERVER("the length of a local request", "if size > REQUEST_BYTES_MAX:", FALSE),
    _PEERS("that a copied key is on hold", "if self._quarantined.get(session.public, 0.0) > "
           "self._ports.clock.monotonic_s():", FALSE),
    _PEERS("that a copied key is noticed", "        if not await first.lives():", "        if True:"),
    _REVISIONS("the maker of a revision", "        if name is None:\n", "        if False:\n"),
    _REVISIONS("the id of a revision", "        if passport.id != revision_id:", "        if False:"),
    _REVISIONS("an artifact's digest", " or blake3(data).digest() != artifact.digest", ""),
]
