"""Watched folders in the world: the real agent over the in-memory port, through a power cut, to its siblings."""

from __future__ import annotations

from typing import Any

ROOT = "/home/me/notes"


def test_a_watched_folder_reaches_the_siblings_and_is_watched_on_after_a_power_cut(household: Any) -> None:
    with household("cloud", "laptop", seed=3) as h:
        def write(name: str, content: bytes) -> None:
            h.look(lambda world: world.machines["cloud"].folders.write(f"{ROOT}/{name}", content))

        write("dog.md", b"Bello")
        assert h.call("cloud", "vault.watch", folder=ROOT)["under"] == "notes/"
        h.until(lambda: h.holds("laptop", "notes/dog.md"))
        h.kill("cloud")
        write("cat.md", b"Minka")
        h.look(lambda world: world.machines["cloud"].folders.move(f"{ROOT}/dog.md", f"{ROOT}/hound.md"))
        h.start("cloud")
        h.until(lambda: h.holds("laptop", "notes/cat.md") and h.holds("laptop", "notes/hound.md"))
        assert not h.holds("laptop", "notes/dog.md")
        assert h.call("cloud", "vault.watch.list")["watches"][0]["state"] == "watching"
