"""Every bound of the protocol, with the unit last in the name. SPEC.md repeats them where they apply.

Bounds are checked before memory is taken. Bounds on the chain bind additions only: removing a device is
possible in every state.
"""

# Canonical encoding (SPEC.md, 1)
value_depth_max = 16
list_items_max = 65_536
map_pairs_max = 1_024
values_max = 1_048_576

# Frames and messages (SPEC.md, 5)
frame_bytes_max = 1_048_576
message_overhead_bytes = 4_096
pack_read_bytes_max = frame_bytes_max - message_overhead_bytes
text_bytes_max = 1_024
heads_max = 64
locator_hashes_max = 96
chain_batch_bytes_max = 786_432
chain_batch_entries_max = 4_096
head_bytes_max = 65_536
packs_list_max = 4_096
backends_max = 16
bases_max = 64
addresses_max = 16
address_bytes_max = 256

# Identity (SPEC.md, 2.4)
passphrase_chars_min = 10
passphrase_chars_max = 1_024
argon2_memory_kib_min = 8
argon2_memory_kib_max = 1_048_576
argon2_passes_max = 16

# Sessions (SPEC.md, 5.4)
requests_outstanding_max = 64
heartbeat_idle_ms = 10_000
silence_ms_max = 30_000
clone_probe_ms = 5_000
twin_sessions_ms = 5_000
handshake_ms_max = 20_000
chain_pull_rounds_max = 1_024

# Relay (SPEC.md, 5.11)
relay_message_bytes_max = 4_096
relay_reservation_s = 3_600
relay_circuits_each_max = 16
relay_circuits_pair_max = 4
relay_circuits_max = 64
relay_circuit_s = 86_400
relay_circuit_bytes = 68_719_476_736
relay_ask_ms_max = 10_000

# Bulk connections (SPEC.md, 5.12)
bulk_token_bytes = 16
bulk_certificate_bytes_max = 1_024
bulk_setup_ms_max = 10_000
bulk_idle_ms_max = 60_000
bulk_connections_each_max = 4
bulk_connections_max = 16
bulk_requests_max = 64
bulk_bytes_max = 68_719_476_736  # far below what AES-GCM may seal under one key

# Comparing packs by ranges (SPEC.md, 6.6)
ranges_packs_min = 1_024
ranges_max = 1_024
range_parts_max = 8_192
range_answers_max = 2_048
ranges_open_max = 65_536
ranges_found_max = 4_194_304

# Chain (SPEC.md, 3)
entry_bytes_max = 131_072
entry_parents_max = 8
chain_entries_max = 16_384
chain_root_entries_max = 1_024  # more, for the root alone: a stolen admin key must not shut it out
chain_additions_bytes_max = 33_554_432
chain_root_bytes_max = 4_194_304  # more, for the root alone, as well
chain_reducing_entries_max = 8_192
reducing_entry_bytes_max = 1_024
chain_bytes_max = 67_108_864
devices_max = 1_024
epoch_previous_max = 64
name_bytes_max = 63
reason_bytes_max = 200

# Invitations and join (SPEC.md, 4)
code_words = 3
nameplate_max = 9_999
code_failures_max = 3
code_lifetime_s = 600
ticket_chars_max = 2_048
ticket_addresses_max = 8
join_attempt_s_max = 30
join_approval_s_max = 300
join_chain_bytes_max = chain_bytes_max
