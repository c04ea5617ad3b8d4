"""The vault over real sessions with the real chain: full-size packs within the session's bounds on what is queued."""

from __future__ import annotations

from hinet_node.vault import VaultSettings
from hinet_simnet.pytest_plugin import MakeHousehold
from hinet_simnet.randomness import SeededRandomness

FULL_SIZE = VaultSettings(index_path=":memory:")


def test_full_size_packs_pass_and_a_cut_line_is_taken_up_again(household: MakeHousehold) -> None:
    content = SeededRandomness("large").draw(40 << 20)
    with household("cloud", "laptop", seed=7, vault=FULL_SIZE, join="code") as h:
        h.until_meshed()
        cloud, laptop = h.agent("cloud").vault, h.agent("laptop").vault
        h.put("laptop", "large", content)
        h.until(lambda: cloud.core.store.incoming(), seconds=60, every_s=0.0005)
        h.partition(["cloud"], ["laptop"])
        h.sleep(120)
        assert h.files("cloud") == []
        assert sum(cloud.core.store.incoming().values()) > 0
        h.heal()
        h.until_meshed()
        h.until(lambda: h.files("cloud") == ["large"])
        assert h.run(lambda world: cloud.get(b"large")) == content
        h.until(lambda: h.look(lambda world: cloud.core.digest() == laptop.core.digest()))
        status = h.run(lambda world: laptop.status())
        assert status.copies[laptop.core.household.device_public] == 2
        assert all(device.in_step for device in status.devices)
        assert cloud.core.disk.list("vault/parts") == []
