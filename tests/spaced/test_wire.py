"""Frames on the wire."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from perdure.spaced import wire
from perdure.spaced.errors import ProtocolError
from perdure.spaced.wire import Lane


def pair() -> tuple[Lane, Lane]:
    left, right = socket.socketpair()
    return Lane(left), Lane(right)


def test_a_frame_brings_its_header_and_its_bytes() -> None:
    left, right = pair()
    left.send({"verb": "start", "name": "a\udcff"}, b"\0\xff")
    left.send({})
    assert right.receive() == ({"verb": "start", "name": "a\udcff"}, b"\0\xff")
    assert right.receive() == ({}, b"")


def test_the_end_of_a_lane_is_none_even_in_the_middle_of_a_frame() -> None:
    left, right = socket.socketpair()
    left.sendall(wire.encode({"verb": "start"}, b"bytes")[:-1])
    left.close()
    assert Lane(right).receive() is None


def test_a_frame_larger_than_any_limit_is_refused_before_it_is_read() -> None:
    left, right = socket.socketpair()
    left.sendall(wire.PREFIX.pack(2, wire.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(ProtocolError):
        Lane(right).receive()


def test_the_newest_common_version_is_spoken() -> None:
    assert wire.version([wire.SPOKEN[0] + 1, *wire.SPOKEN]) == wire.SPOKEN[0]
    with pytest.raises(ProtocolError, match="no common"):
        wire.version([wire.SPOKEN[0] + 7])


def test_several_chunks_travel_in_one_payload() -> None:
    assert wire.split([("a", 2), ("b", 0), ("c", 1)], b"xyz") == {"a": b"xy", "b": b"", "c": b"z"}
    with pytest.raises(ProtocolError):
        wire.split([("a", 2)], b"xyz")


def test_a_beat_never_waits_for_a_client_that_stopped_reading() -> None:
    left, _right = pair()
    for _ in range(100_000):
        left.beat()
    assert not left.broken


def test_a_lane_whose_client_left_is_broken() -> None:
    left, right = pair()
    right.close()
    with pytest.raises(ConnectionError):
        left.send({})
    assert left.broken


def test_a_long_path_goes_through_the_open_folder(tmp_path: Path) -> None:
    assert wire.address("/short", "s-1", 0) == "/short/s-1"
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    fd = os.open(deep, os.O_RDONLY)
    path = wire.address(str(deep), "s-1", fd)
    assert len(path) < 100
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
    assert (deep / "s-1").exists()
    os.close(fd)
