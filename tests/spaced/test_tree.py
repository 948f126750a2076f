"""The format is for ever: the vectors never change, there is one encoding of a tree, and the decoder takes nothing else."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import tree
from perdure.spaced.tree import Branch, FormatError, Leaf, Row
from perdure.spaced.trie import Trie, encode_directory

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors/format.json").read_text())


def ignore(digest: bytes, node: bytes) -> None:
    assert hashlib.sha256(node).digest() == digest


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["meaning"] for vector in VECTORS])
def test_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    assert tree.sha256(data).hex() == vector["sha256"]
    if vector["kind"] == "file":
        size, rows = tree.decode_file(data)
        assert tree.encode_file(size, rows) == data
        content = b"".join(bytes([byte]) * count for byte, count in vector["content"])
        cuts = [(offset, content[offset : offset + length]) for offset, length in tree.cuts(len(content))]
        assert rows == tuple(Row(at, len(piece), tree.sha256(piece)) for at, piece in cuts if not tree.is_hole(piece))
        return
    node = tree.decode_node(data)
    if isinstance(node, Leaf):
        assert tree.encode_leaf(node.header, node.entries.items()) == data
        for payload in node.entries.values():
            tree.decode_payload(payload, times=node.header == tree.TIMES_LEAF)
    else:
        assert tree.encode_branch(node.header, node.total, node.children) == data


def test_a_large_directory_is_the_branch_of_the_vectors() -> None:
    for count in (513, 1000):
        entries = [(b"%d" % n, tree.chunk_payload(0o644, len(b"%d" % n), tree.sha256(b"%d" % n))) for n in range(count)]
        assert encode_directory(tree.TREE_LEAF, entries, ignore).hex() in {vector["sha256"] for vector in VECTORS}


def test_the_shape_follows_from_the_names_alone() -> None:
    rng = random.Random(1)
    live: dict[bytes, bytes] = {}
    trie = Trie(tree.TREE_LEAF)
    for _ in range(12_000):
        name = b"%d" % rng.randrange(1500)
        if name in live and rng.random() < 0.55:
            del live[name]
            trie.remove(name)
        else:
            live[name] = tree.link_payload(b"%d" % rng.randrange(1, 100))
            trie.put(name, live[name])
        if rng.random() < 0.01:
            shuffled = rng.sample(sorted(live.items()), len(live))
            assert trie.seal(ignore) == encode_directory(tree.TREE_LEAF, shuffled, ignore)
    assert trie.count == len(live)


def test_a_change_in_a_huge_directory_makes_few_nodes() -> None:
    trie = Trie(tree.TREE_LEAF)
    for number in range(50_000):
        trie.put(b"%d" % number, tree.link_payload(b"x"))
    trie.seal(ignore)
    made: list[bytes] = []
    trie.put(b"77", tree.link_payload(b"y"))
    trie.seal(lambda digest, node: made.append(node))
    assert len(made) == 3


LEAF = tree.encode_leaf(tree.TREE_LEAF, [(b"a", tree.link_payload(b"x")), (b"b", tree.link_payload(b"y"))])
DIGEST = bytes(32)


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("another header", b"Pd2\n" + LEAF[4:]),
        ("no header", b""),
        ("bytes behind the end", LEAF + b"\0"),
        ("truncated", LEAF[:-1]),
        ("names out of order", b"Pd1\n\x02\x01bl\x01y\x01al\x01x"),
        ("a name twice", b"Pd1\n\x02\x01al\x01y\x01al\x01x"),
        ("an empty name", b"Pd1\n\x01\x00l\x01x"),
        ("a slash in a name", b"Pd1\n\x01\x03a/bl\x01x"),
        ("a NUL in a name", b"Pd1\n\x01\x01\x00l\x01x"),
        ("dot", b"Pd1\n\x01\x01.l\x01x"),
        ("dot dot", b"Pd1\n\x01\x02..l\x01x"),
        ("an integer in a longer form", b"Pd1\n\x81\x00\x01al\x01x"),
        ("an unknown kind", b"Pd1\n\x01\x01ax\x01x"),
        ("a time among files", b"Pd1\n\x01\x01at\x01"),
        ("a file among times", b"Pt1\n\x01\x01al\x01x"),
        ("an empty link target", b"Pd1\n\x01\x01al\x00"),
        ("mode bits that are no permission", b"Pd1\n\x01\x01ad" + tree.varint(0o10000) + DIGEST),
        ("a single chunk of an impossible size", b"Pd1\n\x01\x01ac" + tree.varint(0o644) + tree.varint(65537) + DIGEST),
        ("a single chunk of no bytes", b"Pd1\n\x01\x01ac" + tree.varint(0o644) + b"\0" + DIGEST),
        ("a branch of few entries", tree.encode_branch(tree.TREE_BRANCH, 512, {1: DIGEST})),
        ("a branch without children", tree.encode_branch(tree.TREE_BRANCH, 600, {})),
        ("more than 512 entries", b"Pd1\n" + tree.varint(513)),
    ],
)
def test_the_decoder_refuses(why: str, data: bytes) -> None:
    with pytest.raises(FormatError):
        tree.decode_node(data)


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("another header", LEAF),
        ("a chunk where no cut is", tree.encode_file(200_000, (Row(1, 65536, DIGEST),))),
        ("a chunk of another length", tree.encode_file(200_000, (Row(0, 65535, DIGEST),))),
        ("chunks out of order", tree.encode_file(200_000, (Row(65536, 65536, DIGEST), Row(0, 65536, DIGEST)))),
        ("a chunk twice", tree.encode_file(200_000, (Row(0, 65536, DIGEST), Row(0, 65536, DIGEST)))),
        ("a file of one chunk", tree.encode_file(10, (Row(0, 10, DIGEST),))),
        ("bytes behind the end", tree.encode_file(0, ()) + b"\0"),
    ],
)
def test_the_decoder_of_files_refuses(why: str, data: bytes) -> None:
    with pytest.raises(FormatError):
        tree.decode_file(data)


def test_no_two_byte_strings_are_one_tree() -> None:
    """Whatever decodes encodes to the same bytes: damage is refused or it is another tree."""
    rng = random.Random(2)
    for vector in VECTORS:
        good = bytes.fromhex(vector["hex"])
        for _ in range(300):
            data = bytearray(good)
            data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                if vector["kind"] == "file":
                    encoded = tree.encode_file(*tree.decode_file(bytes(data)))
                else:
                    node = tree.decode_node(bytes(data))
                    encoded = (
                        tree.encode_branch(node.header, node.total, node.children)
                        if isinstance(node, Branch)
                        else tree.encode_leaf(node.header, node.entries.items())
                    )
            except FormatError:
                continue
            assert encoded == data
