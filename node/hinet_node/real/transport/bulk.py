"""Bulk connections: TLS 1.3 on plain TCP, with one-time certificates pinned on both sides. SPEC.md, 5.12.

Noise and yamux in Python end near 200 MB/s; OpenSSL in a thread does four times that for a third of the processor time.
A connection comes in on the port of the sessions (the first byte tells them apart) and is let in only when its server
name is a token that a sibling was told a moment ago over its session; its certificate must be the one named there. The
handshake and the few bytes between packs wait on the event loop, so strangers and idle siblings hold no thread. Leaves
who may have one to `hinet_node.vault.bulk`, and what is said on it to `hinet_protocol.bulk`.
"""

from __future__ import annotations

import contextlib
import datetime
import mmap
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import trio

from hinet_node.errors import NetworkError
from hinet_node.ports import BulkEnd, Pace
from hinet_protocol import limits

T = TypeVar("T")
TLS_FIRST_BYTE = b"\x16"
PIECE_BYTES = 1 << 20
PACED_BYTES = 1 << 14
"""With a limit bytes move in pieces this small, so that a slow link is used evenly."""
STALL_S = 30.0
"""A thread waits so long for the other end's next bytes."""
_NAME = "hinet"
_WELCOME = b"\x01"
_NOT_BEFORE = datetime.datetime(1970, 1, 1)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""A pin, not a date, says what is valid: a board without a clock lives in 1970."""


def certificate(seed: bytes) -> bytes:
    """The self-signed certificate of the Ed25519 key with this seed, DER: the same bytes for the same seed."""
    from cryptography.hazmat.primitives.serialization import Encoding

    found: bytes = _made(seed)[0].public_bytes(Encoding.DER)
    return found


def _made(seed: bytes) -> tuple[Any, Any]:
    from cryptography import x509  # only here: an agent that moves no packs need not load it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, _NAME)])
    builder = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
               .serial_number(1).not_valid_before(_NOT_BEFORE).not_valid_after(_NOT_AFTER))
    return builder.sign(key, None), key


def _context(end: BulkEnd, *, server: bool) -> ssl.SSLContext:
    """A context that shows this end's certificate and takes the other's only."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    context = _bare_context(server=server)
    try:
        context.load_verify_locations(cadata=end.remote_certificate)
    except (ssl.SSLError, ValueError) as error:
        raise NetworkError(f"The sibling's certificate for a bulk connection can't be read: {error}.") from error
    made, key = _made(end.seed)
    with _as_path(made.public_bytes(Encoding.PEM)) as shown, _as_path(key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())) as secret:
        try:
            context.load_cert_chain(shown, secret)
        except OSError as error:
            raise NetworkError(f"This device can't make a bulk connection: {error}.") from error
    return context


def _bare_context(*, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0  # nothing is resumed, and nothing stands between two packs
    return context


@contextlib.contextmanager
def _as_path(pem: bytes) -> Iterator[str]:
    """Python's ssl takes keys from files only; a pipe is one that never is on a disk."""
    reader, writer = os.pipe()
    try:
        try:
            os.write(writer, pem)
        finally:
            os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


class TlsBulk:
    """`hinet_node.ports.BulkStream` on a TLS socket that never blocks; its thread polls."""

    def __init__(self, tls: ssl.SSLSocket, threads: trio.CapacityLimiter) -> None:
        self._tls = tls
        self._threads = threads
        self._buffers: list[memoryview] = []
        self._second: ThreadPoolExecutor | None = None
        self._over = threading.Event()
        self._working = False
        self._closed = False

    async def send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[await self._when_ready(partial(self._tls.send, rest)):]

    async def receive_exactly(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            piece: bytes = await self._when_ready(partial(self._tls.recv, size_bytes - len(data)))
            if not piece:
                raise NetworkError("The other end closed the bulk connection.")
            data += piece
        return data

    async def send_from(self, pieces: Iterator[bytes | memoryview], pace: Pace | None = None) -> None:
        second = self._second_thread()

        def work() -> None:
            coming: Future[bytes | memoryview | None] = second.submit(next, pieces, None)
            try:
                # One piece is read while the one before it goes out.
                while (piece := coming.result()) is not None:
                    coming = second.submit(next, pieces, None)
                    self._send_piece(memoryview(piece), pace)
            finally:
                wait([coming])

        await self._in_thread(work)

    def _send_piece(self, piece: memoryview, pace: Pace | None) -> None:
        step = PACED_BYTES if pace else PIECE_BYTES
        for at in range(0, len(piece), step):
            part = piece[at:at + step]
            self._wait_turn(len(part), pace)
            while part:
                part = part[self._now(partial(self._tls.send, part)):]

    def _second_thread(self) -> ThreadPoolExecutor:
        """Where the disk is read or written while this stream's own thread sends or receives."""
        if self._second is None:
            self._second = ThreadPoolExecutor(1, "bulk disk")
        return self._second

    async def receive_into(self, size_bytes: int, sink: Callable[[memoryview], None],
                           pace: Pace | None = None) -> None:
        if not self._buffers:
            self._buffers = [memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(2)]  # pages, as disks like them
        second = self._second_thread()

        def work() -> None:
            waiting: Future[None] | None = None
            left, turn = size_bytes, 0
            try:
                while left:
                    # One piece is hashed and written while the next one comes.
                    piece = self._buffers[turn][:min(left, PIECE_BYTES)]
                    self._fill(piece, pace)
                    if waiting is not None:
                        waiting.result()
                    waiting = second.submit(sink, piece)
                    left, turn = left - len(piece), 1 - turn
            finally:
                if waiting is not None:
                    wait([waiting])
            if waiting is not None:
                waiting.result()

        await self._in_thread(work)

    def _fill(self, piece: memoryview, pace: Pace | None) -> None:
        filled = 0
        while filled < len(piece):
            most = min(len(piece), filled + PACED_BYTES) if pace else len(piece)
            self._wait_turn(most - filled, pace)
            while filled < most:
                filled += self._receive_some(piece[filled:most])

    async def close(self) -> None:
        self._abort()
        with trio.CancelScope(shield=True):
            while self._working:
                await trio.sleep(0.001)  # only when it is closed under another task's call, which ends at once
        self.drop()

    def drop(self) -> None:
        """Close a stream that nobody uses."""
        self._abort()
        if not self._closed:
            self._closed = True
            if self._second is not None:
                self._second.shutdown(wait=False)  # it has nothing to do any more
            trio.lowlevel.notify_closing(self._tls.fileno())
            self._tls.close()

    # ---- on the event loop -----------------------------------------------------------------------------------------

    async def _when_ready(self, act: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._check()
            try:
                return act()
            except ssl.SSLWantReadError:
                await _readable(self._tls)
            except ssl.SSLWantWriteError:
                await _writable(self._tls)
            except OSError as error:
                raise _gone(error) from error

    async def _in_thread(self, work: Callable[[], None]) -> None:
        self._check()
        failed: BaseException | None = None

        def guarded() -> BaseException | None:
            try:
                work()
            except BaseException as error:  # raised again below, in the task that asked
                return error
            return None

        async def end_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                if self._working:
                    self._abort()

        async with trio.open_nursery() as nursery:
            self._working = True
            nursery.start_soon(end_when_cancelled)
            try:
                failed = await trio.to_thread.run_sync(guarded, limiter=self._threads)
            finally:
                self._working = False
                nursery.cancel_scope.cancel()
        if failed is not None:
            self._abort()
            raise failed

    def _check(self) -> None:
        if self._over.is_set():
            raise NetworkError("The bulk connection is closed.")

    def _abort(self) -> None:
        """End both directions at once; a thread that waits on the socket wakes up."""
        if not self._over.is_set():
            self._over.set()
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._tls, socket.SHUT_RDWR)  # SSLSocket's own would go on in plaintext

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _wait_turn(self, size_bytes: int, pace: Pace | None) -> None:
        self._check()
        if pace is not None and (wait_s := pace(size_bytes)) > 0:
            self._over.wait(wait_s)
            self._check()

    def _receive_some(self, into: memoryview) -> int:
        count = self._now(partial(self._tls.recv_into, into))
        if not count:
            raise NetworkError("The other end closed the bulk connection.")
        return count

    def _now(self, act: Callable[[], int]) -> int:
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self._poll(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._poll(select.POLLOUT)
            except OSError as error:
                raise _gone(error) from error

    def _poll(self, what: int) -> None:
        poll = select.poll()
        poll.register(self._tls.fileno(), what)
        if not poll.poll(STALL_S * 1000):
            raise NetworkError(f"Nothing moved on the bulk connection for {STALL_S:g} s.")
        self._check()


class _Expected:
    """`hinet_node.ports.ExpectedBulk`."""

    def __init__(self, owner: BulkListener, end: BulkEnd) -> None:
        self.end = end
        self.context = _context(end, server=True)
        self.came = trio.Event()
        self.stream: TlsBulk | None = None
        self._owner = owner

    async def arrive(self, timeout_s: float) -> TlsBulk:
        try:
            with trio.move_on_after(timeout_s):
                await self.came.wait()
            found, self.stream = self.stream, None
        finally:
            self.forget()
        if found is None:
            raise NetworkError("The bulk connection did not come in time.")
        return found

    def forget(self) -> None:
        if self._owner.expected.get(self.end.token) is self:
            del self._owner.expected[self.end.token]
        if self.stream is not None:  # it came, and nobody wants it any more
            self.stream.drop()
            self.stream = None


class BulkListener:
    """Makes bulk connections, and lets in those that are expected."""

    def __init__(self) -> None:
        self.expected: dict[bytes, _Expected] = {}
        self._threads = trio.CapacityLimiter(2 * limits.bulk_connections_max)
        self._met: dict[ssl.SSLSocket | ssl.SSLObject, _Expected] = {}
        self._gate: ssl.SSLContext | None = None

    def expect(self, end: BulkEnd) -> _Expected:
        """Errors: `NetworkError` for a token that is expected already, for too many, for a certificate that is none."""
        if end.token in self.expected or len(self.expected) >= limits.bulk_connections_max:
            raise NetworkError("Too many bulk connections are expected at once.", code="E_BUSY")
        self.expected[end.token] = found = _Expected(self, end)
        return found

    async def dial(self, stream: trio.SocketStream, end: BulkEnd) -> TlsBulk:
        """Secure a connection that was just made. Errors: `NetworkError`; it is closed then."""
        context = _context(end, server=False)
        tls = context.wrap_socket(_detach(stream), server_hostname=end.token.hex(), do_handshake_on_connect=False)
        found = await self._secure(tls, lambda: end)
        try:
            # In TLS 1.3 whoever dials is done before the other side has seen its certificate.
            if await found.receive_exactly(1) != _WELCOME:
                raise NetworkError("The other end of a bulk connection says something else than welcome.")
        except BaseException:
            await found.close()
            raise
        return found

    async def accept(self, stream: trio.SocketStream) -> None:
        """Take a connection that began as TLS does. One that is not expected is let go without a word."""
        if not self.expected:
            return  # no stranger has the handshake begun
        if self._gate is None:
            self._gate = _bare_context(server=True)
            self._gate.sni_callback = self._choose
        tls = self._gate.wrap_socket(_detach(stream), server_side=True, do_handshake_on_connect=False)
        try:
            found = await self._secure(tls, lambda: self._met[tls].end if tls in self._met else None)
            expected = self._met[tls]
        finally:
            self._met.pop(tls, None)
        if self.expected.get(expected.end.token) is not expected:
            await found.close()  # it was forgotten meanwhile, or came twice
            return
        del self.expected[expected.end.token]
        try:
            await found.send_all(_WELCOME)
        except BaseException:
            found.drop()
            raise
        expected.stream = found
        expected.came.set()

    def _choose(self, tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """OpenSSL asks, by the server name, for the certificate to show."""
        try:
            expected = self.expected[bytes.fromhex(name or "")]
        except (KeyError, ValueError):
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        self._met[tls] = expected
        tls.context = expected.context
        return None

    async def _secure(self, tls: ssl.SSLSocket, end_of: Callable[[], BulkEnd | None]) -> TlsBulk:
        try:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await _readable(tls)
                except ssl.SSLWantWriteError:
                    await _writable(tls)
            end, shown = end_of(), tls.getpeercert(binary_form=True)
            if end is None or shown != end.remote_certificate:
                raise NetworkError("The other end of a bulk connection shows another certificate.", code="E_WRONG_PEER")
            return TlsBulk(tls, self._threads)
        except BaseException as error:
            tls.close()
            if isinstance(error, OSError):
                raise _gone(error) from error
            raise


async def begins_as_tls(stream: trio.abc.Stream) -> bool:
    """Whether the first byte of an inbound connection is that of a TLS handshake; it stays there to be read."""
    if not isinstance(stream, trio.SocketStream):
        return False
    try:
        return await stream.socket.recv(1, socket.MSG_PEEK) == TLS_FIRST_BYTE
    except OSError:
        return False


def _detach(stream: trio.SocketStream) -> socket.socket:
    """The plain socket under a stream, which is of no use any more."""
    found = stream.socket
    raw = socket.socket(found.family, found.type, found.proto, fileno=found.detach())
    raw.setblocking(False)
    return raw


async def _readable(tls: ssl.SSLSocket) -> None:
    try:
        await trio.lowlevel.wait_readable(tls.fileno())
    except trio.ClosedResourceError as error:
        raise NetworkError("The bulk connection is closed.") from error


async def _writable(tls: ssl.SSLSocket) -> None:
    try:
        await trio.lowlevel.wait_writable(tls.fileno())
    except trio.ClosedResourceError as error:
        raise NetworkError("The bulk connection is closed.") from error


def _gone(error: OSError) -> NetworkError:
    return NetworkError(f"The bulk connection broke: {(error.strerror or str(error)).lower()}.")
