"""The ports: everything that the agent needs from the world, as interfaces.

The agent receives one `Ports` value and touches nothing else: no socket, file, clock, random number or process outside
it. The command line builds the real ones (`transport`, `discovery`, `disk`, `system`, `compute`); `hinet_simnet` builds
in-memory twins, so that the same agent code runs in virtual time. Protocol rules live in `hinet_protocol`; the
implementations carry no policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Clock(Protocol):
    """Time. Waiting itself is trio's (`trio.sleep`), which follows the virtual clock in simnet."""

    def now_unix_s(self) -> float:
        """Wall-clock seconds since 1970. May jump; never used to order or validate entries."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards while the agent runs."""


class Randomness(Protocol):
    """The only source of keys, nonces and choices."""

    def draw(self, size_bytes: int) -> bytes:
        """`size_bytes` unpredictable bytes."""


class Stream(Protocol):
    """An ordered, encrypted, authenticated byte stream to one peer.

    Writing is done by a task of its own inside the implementation, so cancelling `send_all` never harms the connection.
    Errors: `hinet_node.errors.NetworkError` when the peer or the connection is gone.
    """

    async def send_all(self, data: bytes) -> None:
        """Queue bytes; waits while the bounded send queue is full."""

    async def receive_some(self, bytes_max: int) -> bytes:
        """At least one byte, at most `bytes_max`; b"" at the end of the stream."""

    async def close(self) -> None:
        """Close both directions; never raises."""


class Connection(Protocol):
    """An authenticated connection. `remote_public` is the peer's proved Ed25519 key (32 bytes)."""

    remote_public: bytes
    remote_address: str

    async def open_stream(self, protocol: str) -> Stream:
        """Open a stream for one protocol id such as `/hinet/session/1`."""

    async def close(self) -> None:
        """Close the connection and all of its streams; never raises."""


StreamHandler = Callable[[Connection, Stream], Any]
"""`async def handler(connection, stream)`: runs in the network's own nursery until it returns."""


@dataclass(frozen=True)
class BulkEnd:
    """One end of a bulk connection (SPEC.md, 5.12): its token, the seed of this end's one-time key, and the only
    certificate that the other end may show."""

    token: bytes
    seed: bytes
    remote_certificate: bytes


Pace = Callable[[int], float]
"""Told that so many bytes are about to move, says how many seconds to wait before. Called off the event loop."""


class BulkStream(Protocol):
    """An encrypted byte stream to a sibling whose certificate was pinned, for packs: bytes are read from the disk and
    written to it in a thread of its own, so that the event loop never sees them. One task uses it at a time; cancelling
    a call ends the stream. Errors: `NetworkError` when the other end is gone or still for too long."""

    async def send_all(self, data: bytes) -> None:
        """A few bytes."""

    async def receive_exactly(self, size_bytes: int) -> bytes:
        """A few bytes; waits for them without a thread."""

    async def send_from(self, pieces: Iterator[bytes | memoryview], pace: Pace | None = None) -> None:
        """Send all that the iterator gives. It runs in the stream's thread, one piece ahead of what is sent; its errors
        are raised here."""

    async def receive_into(self, size_bytes: int, sink: Callable[[memoryview], None],
                           pace: Pace | None = None) -> None:
        """Receive so many bytes and give them to `sink` in pieces of at most 1 MiB, which it may not keep. It runs in
        the stream's thread; its errors are raised here and the stream is over."""

    async def close(self) -> None:
        """Close at once; never raises."""


class ExpectedBulk(Protocol):
    """A bulk connection that may come in."""

    async def arrive(self, timeout_s: float) -> BulkStream:
        """The connection, once. Errors: `NetworkError` when it does not come in time; it is not taken later."""

    def forget(self) -> None:
        """It may not come any more."""


class Network(Protocol):
    """Listening and dialling. Addresses are multiaddr strings without the peer id: `/ip4/127.0.0.1/tcp/4001`."""

    def serve(self, device_seed: bytes, listen: Sequence[str], handlers: Mapping[str, StreamHandler],
              ) -> AbstractAsyncContextManager[Sequence[str]]:
        """Listen until the context ends; yields the addresses that can be dialled (real interfaces and ports): a tuple
        where they never change, else a sequence that is read anew at each look.

        Errors: `PortBusy` when a wanted port is taken; `NetworkError` when no address can be listened on.
        """

    async def dial(self, address: str, expected_public: bytes | None, timeout_s: float) -> Connection:
        """Connect to one address. `expected_public` None accepts any peer (join); else a mismatch is an error."""

    async def dial_over(self, stream: Stream, address: str, expected_public: bytes, timeout_s: float) -> Connection:
        """Make an authenticated connection over a stream that a relay passes on: the relay sees ciphertext, and the key
        at the other end is proved to us. `address` is how the connection calls itself. The stream is the connection's
        from now on, and closed when this fails. Errors: `NetworkError`."""

    async def accept_over(self, stream: Stream, address: str, expected_public: bytes) -> None:
        """The other end of `dial_over`: serves the handlers of `serve` on the new connection until it is gone. A peer
        with another key, or one that is too slow, is let go without a word."""

    def bulk_certificate(self, seed: bytes) -> bytes:
        """The certificate of the one-time key that these 32 random bytes make. Errors: `NetworkError` when this network
        makes no bulk connections; then the next two raise it as well."""

    def expect_bulk(self, end: BulkEnd) -> ExpectedBulk:
        """From now on, take the bulk connection with this token where `serve` listens. Errors: `NetworkError`."""

    async def dial_bulk(self, address: str, end: BulkEnd, timeout_s: float) -> BulkStream:
        """Make a bulk connection. Errors: `NetworkError`, also when the other end shows another certificate."""


@dataclass(frozen=True)
class Announcement:
    """What a node says of itself on the LAN: nothing that names the owner."""

    name: str
    """Unique instance name: the peer id (or the nameplate of an open invitation)."""
    service: str
    """`_hinet._tcp` for members, `_hinet-pair._tcp` for open invitations."""
    addresses: tuple[str, ...]
    properties: Mapping[str, str]


class Discovery(Protocol):
    """LAN discovery."""

    def announce(self, announcement: Announcement) -> AbstractAsyncContextManager[None]:
        """Announce until the context ends; says goodbye then."""

    def browse(self, service: str) -> AbstractAsyncContextManager[AsyncIterator[Announcement]]:
        """Yield announcements as they appear or change, own ones included; bounded, duplicates merged."""


class Pending(Protocol[T_co]):
    """A call that a `Lane` was given."""

    def result(self) -> T_co:
        """Wait for its end: what it returned. Raises what it, or a call before it, raised."""


class Lane(Protocol):
    """A second place for blocking calls beside the caller's. They run in their order; none runs after one that
    failed. The caller bounds how many wait, by asking for results."""

    def do(self, work: Callable[[], T]) -> Pending[T]: ...

    def close(self) -> None:
        """Wait for the call that runs now; those that wait are not run."""


class Disk(Protocol):
    """The home folder. Names are relative POSIX paths such as `chain/head`; parents are made as needed (0700).

    Calls are short and run where the caller is; long ones belong in `run_blocking`. Errors: `NoSpace` for a full or
    read-only disk, `FileNotFoundError` for a missing name, other `OSError` unchanged.
    """

    def read(self, name: str) -> bytes: ...

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end of the file."""

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """As `read_at`, into the caller's memory; how many bytes came. A view on an mmap may be filled by the device
        directly."""

    def write_atomic(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Temp file, write, fsync, rename, fsync folder: after a crash the old or the new bytes, never a mix.

        `private` makes the file 0600 from its first byte.
        """

    def append(self, name: str, data: bytes | memoryview) -> None:
        """Append to a part file without fsync (resumable downloads); see `commit`. A view on an mmap may go to the
        device directly; it is free again when this returns."""

    def commit(self, part: str, name: str) -> None:
        """fsync `part`, rename it to `name`, fsync the folder. A part that can't be synced is removed: its bytes can't
        be trusted any more."""

    def move(self, name: str, target: str) -> None:
        """Rename whatever stands there, durably and without opening it: a file, a folder with all in it, a link. A file
        at `target` is replaced."""

    def size(self, name: str) -> int: ...

    def exists(self, name: str) -> bool: ...

    def remove(self, name: str) -> None:
        """Remove a file, durably; a missing one is no error. Works on a full disk."""

    def list(self, folder: str) -> list[str]:
        """Names of the entries in a folder, sorted; [] when it is missing."""

    def free_bytes(self) -> int: ...

    def path(self, name: str) -> str:
        """The real path, for handing big model files to worker processes.

        The in-memory twin gives a name that only its own worker understands.
        """

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        """Run a long blocking call off the event loop (in a thread; at once in simnet)."""

    def lane(self) -> Lane:
        """A new lane, for work that a blocking call shares out: a thread, begun with its first call (in simnet each
        call runs at once). Close it."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """What `lstat` says of one entry of a folder."""

    part: bytes
    """Its own name."""
    kind: str
    """`file`, `folder`, or `other`: links, devices, pipes, sockets."""
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0


class FolderChanges(Protocol):
    """Word of changes below one folder. Only a hint: words get lost, and some file systems give none."""

    def follow(self, folder: bytes) -> bool:
        """Hear of changes in this folder (not below it) from now on. False when the system gives no word of it: there
        is no such thing here, or its limit is reached."""

    async def wait(self) -> frozenset[bytes] | None:
        """The folders in which something changed since; None when that is anybody's guess."""


class Folders(Protocol):
    """The owner's folders outside the home. `root` is an absolute path; below it everything is named by bytes, with
    `/` between, b"" for the root itself, and is reached without following any link.

    Calls block, and belong in `run_blocking`. Errors: `OSError`.
    """

    def place(self, root: str) -> FolderEntry | None:
        """The root itself; None when it is missing or is no folder."""

    def entries(self, root: str, folder: bytes) -> list[FolderEntry]:
        """What is in a folder, sorted by name."""

    def read(self, root: str, name: bytes, bytes_max: int) -> bytes:
        """The beginning of a regular file."""

    def source(self, root: str, name: bytes) -> bytes | tuple[bytes, ...]:
        """A file to be read: the steps that lead to it, each to be opened from the one before without following a link,
        the root's path first; where there is no real disk, its content."""

    def changes(self, root: str) -> AbstractContextManager[FolderChanges]:
        """Hear of changes until the context ends."""


class NoFolders:
    """A machine without folders of its owner's: for nodes that watch none."""

    def place(self, root: str) -> FolderEntry | None:
        return None

    def entries(self, root: str, folder: bytes) -> list[FolderEntry]:
        raise FileNotFoundError(root)

    def read(self, root: str, name: bytes, bytes_max: int) -> bytes:
        raise FileNotFoundError(root)

    def source(self, root: str, name: bytes) -> bytes | tuple[bytes, ...]:
        raise FileNotFoundError(root)

    def changes(self, root: str) -> AbstractContextManager[FolderChanges]:
        raise FileNotFoundError(root)


class Worker(Protocol):
    """One worker process of `hinet_tiers.worker`: one call at a time."""

    async def call(self, verb: str, args: Mapping[str, Any], *,
                   on_progress: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
        """Run a verb. Cancelling kills the process. Errors: `hinet_node.errors.NodeError` with the worker's code."""

    async def close(self) -> None: ...


class Compute(Protocol):
    """Where models run: never in the agent's own process."""

    def worker(self, *, memory_bytes_max: int | None = None) -> AbstractAsyncContextManager[Worker]:
        """Start a worker; it is gone when the context ends."""


@dataclass(frozen=True)
class Ports:
    """All that the agent may touch."""

    clock: Clock
    randomness: Randomness
    network: Network
    discovery: Discovery
    disk: Disk
    compute: Compute
    folders: Folders = field(default_factory=NoFolders)
