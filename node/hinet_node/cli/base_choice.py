"""What a person may give as a model: a path, or the digest (or its beginning, or the name) of a base in this home."""

from __future__ import annotations

from pathlib import Path

from hinet_node.cli import context
from hinet_node.errors import UsageError


def model_path(given: str) -> str:
    """The absolute path of a model folder or file, for a worker. A path that exists comes first.

    Errors: `UsageError` E_NO_SUCH_BASE when it is neither a path nor a base here, or fits several.
    """
    path = Path(given).expanduser()
    if path.exists():
        return str(path.absolute())
    if "/" in given or given.endswith((".gguf", ".safetensors")):
        raise UsageError(f"there is no model at {given}", next_step="check the path", code="E_BASE_NOT_FOUND")
    from hinet_node.learning.bases import Bases
    from hinet_node.real.compute import ProcessCompute
    from hinet_node.real.disk import RealDisk

    bases = Bases(RealDisk(context.home_path()), ProcessCompute())
    try:
        return bases.folder(bases.find(given))
    except UsageError as error:
        raise UsageError(f"{error.what}, and no file or folder of that name", next_step=error.next_step,
                         code=error.code) from error


def installed_path(digest: str) -> str | None:
    """The folder of the base with this digest (64 hex digits), where it is in this home."""
    folder = Path(context.home_path()) / "bases" / digest
    return str(folder) if (folder / "base.json").is_file() else None
