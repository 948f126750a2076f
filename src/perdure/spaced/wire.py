"""Frames between a supervisor and its clients, over a Unix stream socket.

A frame is two big-endian 32-bit lengths, a JSON object and raw bytes: no base64, no second encoding of chunks. A connection is a *lane*: its
requests are served strictly one after another, so a reply needs no number, and a client that wants two things at once opens two
lanes. While a request runs, the supervisor may send frames of its own: `need` asks for chunks, `more` brings a part, `alive` says that it is still
there. `ok` or `error` ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
from typing import Any, Iterable, Iterator

from perdure.spaced.errors import ProtocolError

SPOKEN = (1,)
"""Versions of the protocol, newest first: this one and the one before it."""

SILENCE_S = 10.0
"""A supervisor that sends nothing for so long, while a request runs, counts as stopped."""

BEAT_S = 2.0
PREFIX = struct.Struct("!II")
MAX_HEADER_BYTES = 256 << 20
MAX_PAYLOAD_BYTES = 64 << 20
BATCH_BYTES = 4 << 20
BATCH_CHUNKS = 4096
_SUN_PATH_BYTES = 100


def version(offered: Iterable[int]) -> int:
    """The newest version that both sides speak."""
    for candidate in SPOKEN:
        if candidate in set(offered):
            return candidate
    raise ProtocolError("no common protocol version: offered %s, spoken %s" % (sorted(offered), list(SPOKEN)))


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    if len(head) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError("a frame of %d + %d bytes is too large" % (len(head), len(payload)))
    return PREFIX.pack(len(head), len(payload)) + head + payload


def lengths(prefix: bytes) -> tuple[int, int]:
    head, payload = PREFIX.unpack(prefix)
    if head > MAX_HEADER_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise ProtocolError("a frame of %d + %d bytes is announced" % (head, payload))
    return head, payload


def decode(head: bytes) -> dict[str, Any]:
    header = json.loads(head)
    if not isinstance(header, dict):
        raise ProtocolError("a frame's header is not an object")
    return header


def split(sizes: Iterable[tuple[str, int]], payload: bytes) -> dict[str, bytes]:
    """A payload of several chunks, by digest."""
    parts, at = {}, 0
    for digest, size in sizes:
        parts[digest] = payload[at : at + size]
        at += size
    if at != len(payload):
        raise ProtocolError("%d bytes announced, %d came" % (at, len(payload)))
    return parts


def batches(chunks: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Chunks in groups that fit into a frame: bounded in bytes, and in number, since names have a size too."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for digest, data in chunks:
        batch.append((digest, data))
        size += len(data)
        if size >= BATCH_BYTES or len(batch) >= BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def address(folder: str, name: str, folder_fd: int) -> str:
    """A path for `name` in the folder that fits into sun_path; a long one goes through the open folder (Linux only)."""
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
        return path
    if sys.platform != "linux":
        raise ProtocolError("the socket's path %r is longer than %d bytes; choose a shorter home" % (path, _SUN_PATH_BYTES))
    return "/proc/self/fd/%d/%s" % (folder_fd, name)


class Lane:
    """The supervisor's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self.broken = False

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None at the end."""
        prefix = self._exactly(PREFIX.size)
        if prefix is None:
            return None
        head_bytes, payload_bytes = lengths(prefix)
        head, payload = self._exactly(head_bytes), self._exactly(payload_bytes)
        if head is None or payload is None:
            return None
        return decode(head), payload

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Raises ConnectionError when nobody is there any more."""
        data = encode(header, payload)
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError as error:
                self.broken = True
                raise ConnectionError(str(error)) from error

    def beat(self) -> None:
        """Say `alive`, unless something is being sent or the client has stopped reading. Never blocks."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            self._socket.send(encode({"alive": 1}), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        finally:
            self._sending.release()

    def ready(self, timeout_s: float) -> bool:
        """Whether `receive` has something to return, or the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def stop(self) -> None:
        """From another thread: nothing comes or goes any more, whatever is waited for."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.stop()
        self._socket.close()

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(min(size - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
