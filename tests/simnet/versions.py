"""Whether the Python versions of this machine agree on a trace. Not part of the suite: each needs an environment.

    python tests/simnet/versions.py python3.12 /path/to/python3.13 …

For each interpreter: a virtual environment in a temporary folder (`--keep FOLDER` to use one again), the few packages
that the world level needs, at the versions of `constraints.txt`, then one story with every kind of fault, under two
hash seeds. Prints a digest for each and ends with 1 when they differ. `--digest` is what each of them runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("protocol", "tiers", "node", "simnet")
NEEDED = ("trio", "pynacl", "msgpack", "cryptography", "typer", "rich", "blake3", "spake2", "mnemonic", "segno",
          "platformdirs", "zstandard", "numpy", "safetensors")
HASH_SEEDS = ("1", "2")


def digest() -> str:
    """The story's trace under the interpreter that runs this."""
    import trio

    from hinet_simnet.scenario.model import Delay, DeviceSpec, LinkSpec
    from hinet_simnet.world import World, run_world

    async def story(world: World) -> None:
        world.set_link(LinkSpec(delay=Delay("lognormal", 0.01, 0.5), loss=0.02, duplicate=0.01, reorder=0.05,
                                rate_bytes_s=1e6))
        await world.found(DeviceSpec("cloud", "one", tier="cloud"))
        for name in ("laptop", "pocket"):
            await world.join(DeviceSpec(name, "one"), by="cloud")
        await world.join(DeviceSpec("keeper", "one", role="keeper", by="direct"), by="cloud")
        await world.household([DeviceSpec(f"x{number}", "two", by="direct") for number in range(3)])
        await world.until(lambda: world.meshed("cloud", "laptop", "pocket", "keeper"), seconds=600)
        for number in range(5):
            await world.call("laptop", "vault.put", name=f"file{number}", content=bytes([number]) * 200_000)
        await trio.sleep(60)
        world.partition(["cloud"], ["laptop", "pocket"])
        await world.call("cloud", "vault.put", name="notes/dog.md", content=b"My dog is called Brannoch.")
        await trio.sleep(50)
        world.heal()
        world.tear("laptop", share=0.5)
        await world.kill("laptop")
        await world.start("laptop")
        await world.freeze("pocket")
        await trio.sleep(100)
        await world.thaw("pocket")
        await trio.sleep(60)
        await world.call("cloud", "train", recipe="demo")
        await world.clone("pocket", "copy")
        await trio.sleep(100)
        await world.kill("copy")
        await world.call("cloud", "device.revoke", device="pocket", reason="lost")
        await trio.sleep(100)

    return run_world(story, seed=1).digest()


def environment(python: str, folder: Path) -> Path:
    """An environment with what is needed; returns its interpreter."""
    place = folder / python.strip("/").replace("/", "-")
    inside = place / "bin" / "python"
    if not inside.exists():
        subprocess.run([python, "-m", "venv", str(place)], check=True)
        subprocess.run([str(inside), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *NEEDED],
                       check=True)
    return inside


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a trace's digest between Python versions.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="interpreters, beside the one that runs this")
    parser.add_argument("--digest", action="store_true", help="print this interpreter's digest and end")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the environments stay")
    given = parser.parse_args()
    if given.digest:
        print(platform.python_version(), digest())
        return 0
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        pythons = [Path(sys.executable), *(environment(python, given.keep or Path(temporary))
                                           for python in given.pythons)]
        for python in pythons:
            for seed in HASH_SEEDS:
                done = subprocess.run([str(python), __file__, "--digest"], check=True, text=True,
                                      stdout=subprocess.PIPE, env={
                                          **os.environ, "PYTHONHASHSEED": seed,
                                          "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in PARTS)})
                version, one = done.stdout.split()
                found[f"Python {version}, hash seed {seed}"] = one
                print(f"{one}  Python {version}, hash seed {seed}")
    return 0 if len(set(found.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
