"""Verifications around the root that must be missed when they are gone: sealed copies, recovery, new keys, terms."""

from __future__ import annotations

from mutation.mutant import FALSE, GONE, Mutant, within

_SEALED = within("protocol/hinet_protocol/sealed_root.py", "protocol/test_sealed_root.py")
_RECOVERING = within("protocol/hinet_protocol/recovering.py", "protocol/test_recovering.py", "simnet/test_recover.py")
_RECOVERY = within("node/hinet_node/belonging/recovery.py", "node/belonging/test_recovery.py",
                   "node/test_cli_identity.py")
_STREAM = within("node/hinet_node/belonging/recover_stream.py", "simnet/test_recover.py")
_EXCHANGE = within("node/hinet_node/belonging/exchange.py", "node/belonging/test_exchange.py", "simnet/test_rekey.py")
_KEYS = within("node/hinet_node/belonging/device_keys.py", "node/belonging/test_exchange.py")
_CERTIFICATES = within("node/hinet_node/belonging/certificates.py", "node/belonging/test_certificates.py")
_FILES = within("node/hinet_node/cli/root_key.py", "node/test_cli_identity.py", "node/test_cli.py")

MUTANTS: list[Mutant] = [
    _SEALED("the memory that a sealed root asks for",
            "if not limits.argon2_memory_kib_min <= memory_kib <= limits.argon2_memory_kib_max:", FALSE),
    _RECOVERING("that whoever asks for the chain has its root",
                "if message.root != chain.root_public and root_commitment(message.root) != chain.root_promise:", FALSE),
    _RECOVERING("the signature of whoever asks for the chain", "    verify(message.root, SIGN_RECOVER, ",
                "    (message.root, SIGN_RECOVER, "),
    _RECOVERY("that recovery is the root's", "    check_root(chain, root)\n    for device", "    for device"),
    _RECOVERY("that revoking by words is the root's", "    check_root(chain, root)\n    chain = _without",
              "    chain = _without"),
    _RECOVERY("that the past is closed", "return grown(chain, [make_checkpoint(chain, root, time_s=now_s, note=note)])",
              "return chain"),
    _STREAM("that a chain is of the words' identity", "            check_answer(chain, root)", GONE),
    _STREAM("how many may ask at once", "if self._answering > ANSWERS_MAX:", FALSE),
    _EXCHANGE("that new keys are for the same household", "if following.identity_id != chain.identity_id:", FALSE),
    _KEYS("that certified keys are used before they are settled",
          "    if following is not None and chain.device(following.public) is not None:\n        return following\n",
          ""),
    _CERTIFICATES("that an expired admin renews nobody",
                  "(me.expired(now_s) and not all(device.expired(now_s) for device in admins))", "False"),
    _FILES("that secrets are the owner's alone", "0o600)", "0o644)"),
    _FILES("that secrets are written over no file", "os.O_EXCL | ", ""),
]
