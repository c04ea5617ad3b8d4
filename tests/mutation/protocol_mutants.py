"""Verifications of the protocol that must be missed when they are gone. SPEC.md, sections 1 to 8."""

from __future__ import annotations

from mutation.mutant import FALSE, GONE, Mutant, within

_IDENTITY = within("protocol/hinet_protocol/identity.py", "protocol/test_identity.py")
_ENTRIES = within("protocol/hinet_protocol/chain/entries.py", "protocol/test_hostile_checks.py",
                  "protocol/test_hostile_chain.py")
_RULES = within("protocol/hinet_protocol/chain/rules.py", "protocol/test_hostile_checks.py",
                "protocol/test_hostile_chain.py", "protocol/test_chain*.py",
                "protocol/test_epochs.py")
_STANDING = within("protocol/hinet_protocol/chain/standing.py", "protocol/test_chain*.py",
                   "protocol/test_hostile_chain.py")
_DEVICES = within("protocol/hinet_protocol/chain/devices.py", "protocol/test_chain*.py")
_CANONICAL = within("protocol/hinet_protocol/canonical.py", "protocol/test_canonical.py")
_FRAMES = within("protocol/hinet_protocol/frames.py", "protocol/test_frames.py")
_SCHEMA = within("protocol/hinet_protocol/schema.py", "protocol/test_hostile_checks.py",
                 "protocol/test_messages.py", "protocol/test_chain.py",
                 "protocol/test_hostile_chain.py")
_INVITATION = within("protocol/hinet_protocol/invitations.py", "protocol/test_invitations.py", "protocol/test_join.py")
_INVITER = within("protocol/hinet_protocol/join/inviter.py", "protocol/test_hostile_checks.py", "protocol/test_join.py")
_JOINER = within("protocol/hinet_protocol/join/joiner.py", "protocol/test_hostile_checks.py", "protocol/test_join.py")
_SECRETS = within("protocol/hinet_protocol/join/secrets.py", "protocol/test_hostile_checks.py",
                  "protocol/test_vectors.py", "protocol/test_join.py")
_SESSION = within("protocol/hinet_protocol/session.py", "protocol/test_hostile_checks.py",
                  "protocol/test_session.py", "protocol/test_hostile_session.py")
_HEADS = within("protocol/hinet_protocol/heads.py", "protocol/test_heads.py")
_PACKS = within("protocol/hinet_protocol/packs.py", "protocol/test_hostile_checks.py", "protocol/test_packs.py")
_TREES = within("protocol/hinet_protocol/trees.py", "protocol/test_trees.py")
_PAST = within("protocol/hinet_protocol/past.py", "protocol/test_past.py")
_PASSPORTS = within("protocol/hinet_protocol/passports.py", "protocol/test_passports.py")
_TAU = within("protocol/hinet_protocol/taskvectors.py", "protocol/test_taskvectors.py")

SIGNATURES = [
    _IDENTITY("a signature", "        crypto_sign_open(signature + signed_bytes(domain, message), public)", GONE),
    _IDENTITY("the domain of a signature", "_SIGN_PREFIX + bytes([len(domain)]) + domain + message",
              "_SIGN_PREFIX + message"),
    _ENTRIES("an entry's signature", '    verify(found["signer"], SIGN_CHAIN_ENTRY, payload, signature)', GONE),
    _HEADS("a head's signature", "    verify(head.device, SIGN_VAULT_HEAD, body, signature)", GONE),
    _PASSPORTS("a passport's signature",
               '    verify(found["device"], SIGN_PASSPORT, outer["body"], outer["signature"])', GONE),
    _TAU("a task vector's signature",
         "        identity.verify(header.signer, SIGNING_DOMAIN, signing_message(header), header.signature)",
         "        pass"),
    _INVITER("the joiner's signature", '        verify(self.peer, SIGN_JOIN_REQUEST, proved, found["proof"])', GONE),
]

CHAIN = [
    _ENTRIES("an entry's version", 'if found["v"] != entry_version:', FALSE),
    _ENTRIES("that only genesis has no parents", 'if (kind == GENESIS) != (not found["parents"]):', FALSE),
    _ENTRIES("unknown fields of an entry", 'if name not in checks and not name.startswith("x-"):', FALSE),
    _ENTRIES("the size of a removal", "if entry.reduces and len(raw) > limits.reducing_entry_bytes_max:", FALSE),
    _RULES("the bytes of a chain",
           "if graph.additions_bytes + len(entry.raw) > most_bytes:", FALSE),
    _RULES("that genesis is the root's", 'entry.signer != entry.body["root"] or ', ""),
    _RULES("that the identity is the root's hash", " or identity_id(entry.signer) != entry.identity_id", ""),
    _RULES("an entry's identity", "if entry.identity_id != graph.genesis.entry.identity_id:", FALSE),
    _RULES("the signer's role", "(entry.kind == CHECKPOINT or entry.signer not in place.members.admins)",
           "entry.kind == CHECKPOINT"),
    _RULES("that the root signs a checkpoint", "(entry.kind == CHECKPOINT or entry.signer not in place.members.admins)",
           "entry.signer not in place.members.admins"),
    _RULES("who may revoke", "if entry.signer not in admins and not leaves:", FALSE),
    _RULES("the last admin", "if admins == {target}:", FALSE),
    _RULES("that a revoked device was there", "    if not graph.certified(target, past):", "    if False:"),
    _RULES("who may withdraw a consent",
           'if not place.as_root and place.role_of(entry.signer) not in ("admin", "member"):', FALSE),
    _RULES("the promise of the next root", ' or root_commitment(new) != place.root["next"]', ""),
    _RULES("that a root's key is new", "if new in place.roots() or place.graph.certified(new, place.past):", FALSE),
    _RULES("that a device's key is new", 'or graph.certified(body["sign"], past) ', ""),
    _RULES("that a device's other key is new", ' or graph.box_introduced(body["box"], past)', ""),
    _RULES("that a device is not the root", 'body["sign"] in place.roots() or ', ""),
    _RULES("a device's name", "if public == place.entry.continues or not place.live(public):", "if True:"),
    _RULES("the number of devices", "if place.members.live_count >= limits.devices_max:", FALSE),
    _RULES("that nobody renews itself",
           "if not place.as_root and entry.signer == device and place.members.admins != {device}:", FALSE),
    _RULES("that only the living are renewed", "    if not place.live(device):", "    if False:"),
    _RULES("that a renewal keeps its keys", 'elif body["box"] != first.entry.body["box"]:', "elif False:"),
    _RULES("that a keeper gets no keys", 'if body["epochs"] and role == "keeper":', FALSE),
    _RULES("that an epoch is not for keepers", '        if role == "keeper":', "        if False:"),
    _RULES("that an epoch is for members", "        if role is None:", "        if False:"),
    _RULES("that an epoch wraps once", "if len(set(wraps)) != len(wraps):", FALSE),
    _RULES("that earlier epochs are in the past",
           "if node is None or not place.past >> node.index & 1 or node.entry.kind != EPOCH_NEW or epoch_id in seen:",
           FALSE),
    _STANDING("that a removed admin grants nothing",
              "if not all(removal.follows(node) for removal in self.removals.get(signer, ())):", FALSE),
    _STANDING("that a removed device is not live", " and not self.removals.get(public)", ""),
    _STANDING("seniority", "key in ranks and ranks[target] < ranks[key] and ", "key in ranks and "),
    _STANDING("that a checkpoint closes the past",
              "return any(node.apart(checkpoint) for checkpoint in self.checkpoints)", "return False"),
    _STANDING("that a root out of force is out",
              "return at + 1 == len(self.line) or self.line[at + 1].follows(node)", "return True"),
    _DEVICES("expiry: the rights of a keeper", 'return "keeper" if self.expired(now_s) else self.role',
             "return self.role"),
]

FORMS = [
    _CANONICAL("bytes after a value", "if reader.at != len(reader.raw):", FALSE),
    _CANONICAL("order and repetition of keys", "if last is not None and key <= last:", FALSE),
    _CANONICAL("the depth of values", "if depth > limits.value_depth_max:", FALSE),
    _CANONICAL("a list's length before it is made", "if count > len(self.raw) - self.at:", FALSE),
    _CANONICAL("a map's length before it is made", "if 2 * count > len(self.raw) - self.at:", FALSE),
    _CANONICAL("the most of a list or map", "if count > count_max:", FALSE),
    _CANONICAL("the number of values", "if self.values > limits.values_max:", FALSE),
    _CANONICAL("shortest forms", 'if number > bound if kind == "int" else number < bound:', FALSE),
    _CANONICAL("that text is UTF-8", 'self.take(count).decode("utf-8")', 'self.take(count).decode("utf-8", "replace")'),
    _CANONICAL("that keys are text",
               '            if not isinstance(key, str):\n                raise EncodingError("A map key is not a',
               '            if False:\n                raise EncodingError("A map key is not a'),
    _FRAMES("a frame's length", "if not 1 <= size <= self._bytes_max:", FALSE),
    _FRAMES("the end inside a frame", "        if self._buffer:", "        if False:"),
    _SCHEMA("unknown fields of a message", 'if name not in checks and not name.startswith("x-"):', FALSE),
    _SCHEMA("missing fields", "        if name not in value:", "        if False:"),
    _SCHEMA("that an integer is one, in its bounds", "if type(value) is not int or not lowest <= value <= highest:",
            FALSE),
    _SCHEMA("the length of bytes", "not isinstance(value, bytes) or not shortest <= len(value) <= longest",
            "not isinstance(value, bytes)"),
    _SCHEMA("the length of lists", "not isinstance(value, (list, tuple)) or not items_min <= len(value) <= items_max",
            "not isinstance(value, (list, tuple))"),
    _SCHEMA("control characters", "if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in value):", FALSE),
    _SCHEMA("order of lists", "if any(left >= right for left, right in itertools.pairwise(items)):", FALSE),
]

JOINING = [
    _INVITATION("a ticket's checksum", "_polymod(_PREFIX_VALUES + values) != _BECH32M", "False"),
    _INVITATION("that an invitation was not used", 'if self.state in ("consumed", "certified"):', FALSE),
    _INVITATION("expiry of an invitation", "if now_s >= self.expires_at_s:", FALSE),
    _INVITATION("three failures", "failures >= limits.code_failures_max", "False"),
    _INVITATION("that an invitation is consumed once",
                '        if self.state != "open":\n            raise InvitationUsed',
                "        if False:\n            raise InvitationUsed"),
    _INVITER("the joiner's proof", "if not secrets.joiner_proved(message.mac):", FALSE),
    _INVITER("the tier of an invitation", 'if invitation.tier is not None and found["tier"] != invitation.tier:',
             FALSE),
    _INVITER("that a joiner's name is free", "            if named is not None:", "            if False:"),
    _INVITER("that a joiner's key was not removed", "        if not known.live:", "        if False:"),
    _INVITER("the record at the opening", "        invitation.check_usable(now_s)\n        share", "        share"),
    _INVITER("the record at the proof", "        invitation.check_usable(now_s)\n        if not secrets",
             "        if not secrets"),
    _INVITER("the joiner's last word", "            self.secrets.check_done(message.mac)\n", ""),
    _JOINER("the inviter of a ticket", "if invitation.inviter != peer:", FALSE),
    _JOINER("the inviter's proof", "if not self.secrets.inviter_proved(message.mac):", FALSE),
    _JOINER("the offered root", "if identity_id(offer.root_public) != offer.identity_id:", FALSE),
    _JOINER("the offered identity and role",
            "if isinstance(ticket, Ticket) and (offer.identity_id, offer.role) != (ticket.identity_id, ticket.role):",
            FALSE),
    _JOINER("the offered chain", "if chain.genesis.hash != offer.genesis or chain.missing(offer.heads):", FALSE),
    _JOINER("one's own certificate", "if device is None or not device.live:", "if device is None:"),
    _JOINER("what the certificate says",
            "if (device.role, device.box_public, device.tier) != (offer.role, self.keys.box_public, self.tier):",
            FALSE),
    _JOINER("that the inviter belongs", "if not chain.is_member(self.peer):", FALSE),
    _SECRETS("that a share is a point of the curve", "(SPAKEError, NotOnCurve, ", "(SPAKEError, "),
    _SECRETS("that a share is written in its one form", "        _check_share(received)\n", ""),
    _SECRETS("that messages change the transcript",
             "return replace(self, transcript=hash_bytes(self.transcript + sealed))", "return self"),
    _SECRETS("the keys in the transcript", "carrier, selector, joiner, inviter, joiner_share, inviter_share]",
             "carrier, selector, joiner_share, inviter_share]"),
    _SECRETS("the shares in the transcript", "joiner, inviter, joiner_share, inviter_share]", "joiner, inviter]"),
]

SESSIONS = [
    _SESSION("that the key is the connection's", "if hello.device != self.peer:", FALSE),
    _SESSION("one's own key at another machine", "if hello.device == self.own.device:", FALSE),
    _SESSION("the peer's identity", "if hello.identity_id != self.own.identity_id:", FALSE),
    _SESSION("the version", "        if not shared:", "        if False:"),
    _SESSION("that a stranger gets no chain", "if not self.chain.is_member(self.peer):", FALSE),
    _SESSION("that a stranger is refused", "        if device is None:\n            raise Stranger",
             "        if False:\n            raise Stranger"),
    _SESSION("that a removed device is refused",
             "        known = state.device\n        if known is not None and not known.live:\n            raise",
             "        known = state.device\n        if False:\n            raise"),
    _SESSION("that a device removed meanwhile is refused",
             "if known is not None and not known.live and self.hello is not None:", FALSE),
    _SESSION("that work begins when it is open", '        if self.phase != "open":\n            raise SessionViolation',
             "        if False:\n            raise SessionViolation"),
    _SESSION("that the hello comes first", 'if self.phase == "greeting":', FALSE),
    _SESSION("one hello", "        if self.hello is not None:\n", "        if False:\n"),
    _SESSION("that numbers rise", "if message.number <= self.last_asked:", FALSE),
    _SESSION("how many questions wait", "if len(self.answering) >= limits.requests_outstanding_max:", FALSE),
    _SESSION("answers that nobody asked for", "if not 0 < message.number < self.next_number:", FALSE),
    _SESSION("entries that nobody asked for", "if not self.pulling or self.importing:", FALSE),
    _SESSION("entries without end", "if state.pull_rounds >= limits.chain_pull_rounds_max:", FALSE),
    _SESSION("entries that are refused", "        if cause is not None:", "        if False:"),
    _SESSION("silence", "if now_ms >= self.received_ms + limits.silence_ms_max:", FALSE),
    _SESSION("the time for the greeting", "if now_ms >= self.started_ms + limits.handshake_ms_max:", FALSE),
    _SESSION("that a clone is suspected", "if first.boot_nonce != second.boot_nonce:", FALSE),
]

VAULT = [
    _HEADS("the household of a head", "if head.identity != identity:", FALSE),
    _HEADS("that a head is a member's", "if head.device not in members:", FALSE),
    _HEADS("that a head counts itself", 'if dict(found["vector"]).get(found["device"]) != found["seq"]:', FALSE),
    _HEADS("order in a pack list", "if any(left >= right for left, right in itertools.pairwise(names)):", FALSE),
    _PACKS("a pack's name", "if pack_name(raw) != name:", FALSE),
    _PACKS("a chunk's id", " or chunk_id(id_key, plain) != slot.chunk_id", ""),
    _PACKS("the place of the footer", " or offset + length + trailer_bytes != self.size_bytes", ""),
    _PACKS("a chunk's size", "or whole > chunk_bytes_max\n", "\n"),
    _PACKS("that slots fill the pack", "if not 0 <= room < padding_multiple_bytes:", FALSE),
    _PACKS("that a chunk is there once", "if len({slot.chunk_id for slot in slots}) != len(slots):", FALSE),
    _TREES("the canonical form of a page", "_require(pack_rows(value) == raw, ", "_require(True, "),
    _PAST("order of a past", "if packed <= last:", FALSE),
    _PAST("the length of a name in a past", " and 1 <= len(name) <= name_bytes_max):", "):"),
    _PAST("the weight of a past", " or (len(found) > 1 and weight > name_weight_max)", ""),
    _TREES("order of names", "_require(name > last, ", "_require(True, "),
    _TREES("that a page is what its root says",
           "_require(len(page) == self.entries and next(iter(page)) == self.first, ", "_require(True, "),
    _TREES("the lists of a page", "_require(self._left >= 0, ", "_require(True, "),
    _PASSPORTS("the household of a passport", 'if found["identity"] != identity:', FALSE),
    _TAU("a block's digest", "if blake3(raw).digest() != row.digest:", FALSE),
    _TAU("the length of a block", "if row.length > CODECS[row.codec].block_bytes_max(row.size, row.kept):", FALSE),
]

MUTANTS: list[Mutant] = [*SIGNATURES, *CHAIN, *FORMS, *JOINING, *SESSIONS, *VAULT]
