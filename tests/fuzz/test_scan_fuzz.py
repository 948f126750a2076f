"""A scan that trusts stat keys, and a watch that trusts events, against a walk that trusts nothing: after every random call all name the same tree.

The walk is written here from docs/format.md alone and shares no code with the supervisor, so it is also a second implementation of the format.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from perdure.spaced.index import Folder
from perdure.spaced.workspace import Workspace

SEEDS = range(int(os.environ.get("PERDURE_FUZZ_SEED", "0")), int(os.environ.get("PERDURE_FUZZ_SEED", "0")) + 8)
CALLS = int(os.environ.get("PERDURE_FUZZ_CALLS", "130"))
MOST_PATHS = 40


# ---- the second implementation -------------------------------------------------------------------------------------------------


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def leb(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n % 128 + 128]), n // 128
    return out + bytes([n])


def file_payload(mode: int, data: bytes) -> bytes:
    whole = len(data) // 2**20 * 2**20
    pieces = [(at, data[at : at + 2**20]) for at in range(0, whole, 2**20)]
    pieces += [(at, data[at : at + 2**16]) for at in range(whole, len(data), 2**16)]
    rows = [(at, piece) for at, piece in pieces if piece.strip(b"\0")]
    if len(rows) == 1 and len(rows[0][1]) == len(data):
        return b"c" + leb(mode) + leb(len(data)) + sha(data)
    node = b"Pf1\n" + leb(len(data)) + leb(len(rows)) + b"".join(leb(at) + leb(len(piece)) + sha(piece) for at, piece in rows)
    return b"f" + leb(mode) + sha(node)


def directory_node(kind: str, entries: list[tuple[bytes, bytes]], level: int = 0) -> bytes:
    leaf, branch = {"tree": (b"Pd1\n", b"Pb1\n"), "times": (b"Pt1\n", b"Pu1\n")}[kind]
    if len(entries) <= 512:
        return leaf + leb(len(entries)) + b"".join(leb(len(name)) + name + payload for name, payload in sorted(entries))
    children: dict[int, list[tuple[bytes, bytes]]] = {}
    for name, payload in entries:
        bits = bin(int.from_bytes(sha(name), "big"))[2:].zfill(256)
        children.setdefault(int(bits[5 * level : 5 * level + 5], 2), []).append((name, payload))
    bitmap = sum(2**slot for slot in children).to_bytes(4, "big")
    digests = (sha(directory_node(kind, children[slot], level + 1)) for slot in sorted(children))
    return branch + leb(len(entries)) + bitmap + b"".join(digests)


def walk(path: bytes) -> tuple[bytes, bytes]:
    """Digests of the tree and of its times, every byte read."""
    tree, times = [], []
    for name in os.listdir(path):
        at = path + b"/" + name
        status = os.lstat(at)
        mode = stat.S_IMODE(status.st_mode)
        time = b"t" + leb(status.st_mtime_ns * 2)
        if stat.S_ISDIR(status.st_mode):
            below = walk(at)
            tree.append((name, b"d" + leb(mode) + below[0]))
            times.append((name, b"d" + below[1]))
        elif stat.S_ISLNK(status.st_mode):
            target = os.fsencode(Path(os.fsdecode(at)).readlink())
            tree.append((name, b"l" + leb(len(target)) + target))
            times.append((name, time))
        elif stat.S_ISREG(status.st_mode):
            with open(at, "rb") as file:
                tree.append((name, file_payload(mode, file.read())))
            times.append((name, time))
    return sha(directory_node("tree", tree)), sha(directory_node("times", times))


# ---- random calls --------------------------------------------------------------------------------------------------------------


class Caller:
    """What a command might do, blindly: an operation that does not apply is skipped."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng = root, rng

    def call(self) -> None:
        if len(self.paths()) > MOST_PATHS:
            for path in self.root.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for _ in range(self.rng.randint(1, 12)):
            operation = self.rng.choice(
                [self.write] * 4
                + [self.append, self.in_place, self.mapped, self.truncate, self.same_size, self.quiet] * 2
                + [self.rename, self.rename, self.rmtree, self.remake, self.mode, self.mode, self.link, self.symlink, self.swap]
                + [self.unlink, self.transient_link, self.holes, self.many, self.mkdir, self.fifo]
            )
            try:
                operation()
            except (OSError, ValueError):
                continue

    def paths(self) -> list[Path]:
        """Everything but the contents of the one large directory."""
        return [
            Path(at, name)
            for at, directories, files in os.walk(self.root)
            for name in (*directories, *(files if not at.endswith("many") else files[:3]))
        ]

    def some(self, kind: str = "any") -> Path:
        paths = [p for p in sorted(self.paths()) if kind == "any" or (is_directory(p) if kind == "directory" else is_file(p))]
        if kind == "directory":
            paths.append(self.root)
        if not paths:
            raise FileNotFoundError
        return self.rng.choice(paths)

    def new(self) -> Path:
        """A path that is free, or a regular file: nothing is ever written through a link, or to a FIFO."""
        names = ["a", "b", "c.txt", "d\xe9", "e f", "g\udcff", "Z", ".hidden"]
        path = self.some("directory") / f"{self.rng.choice(names)}{self.rng.randint(0, 9)}"
        if os.path.lexists(path) and not is_file(path):
            path.unlink()
        return path

    def data(self) -> bytes:
        size = self.rng.choice([0, 1, 10, 100, 500, 1000, 2000, 5000, 9000] * 3 + [65536, 65537, 200_000, 1 << 20])
        return self.rng.randbytes(min(size, 64)) * (size // 64 + 1)

    def write(self) -> None:
        self.new().write_bytes(self.data())

    def append(self) -> None:
        with open(self.some("file"), "ab") as file:
            file.write(b"more")

    def in_place(self) -> None:
        with open(self.some("file"), "r+b") as file:
            file.write(self.rng.randbytes(3))

    def same_size(self) -> None:
        path = self.some("file")
        path.write_bytes(path.read_bytes().translate(bytes(range(255, -1, -1))))

    def quiet(self) -> None:
        """Write, then put the time back."""
        path = self.some("file")
        before = path.stat()
        with open(path, "r+b") as file:
            file.write(b"!")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def mapped(self) -> None:
        path = self.some("file")
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            view[0] = self.rng.randrange(256)

    def truncate(self) -> None:
        path = self.some("file")
        os.truncate(path, self.rng.choice([0, path.stat().st_size // 2, path.stat().st_size + 70_000]))

    def holes(self) -> None:
        with open(self.new(), "wb") as file:
            file.truncate(self.rng.choice([100, 1 << 20, (1 << 20) + 100_000]))
            if self.rng.random() < 0.5:
                file.seek(70_000)
                file.write(b"island")

    def rename(self) -> None:
        self.some().rename(self.new())

    def swap(self) -> None:
        one, other, between = self.some("file"), self.some("file"), self.root / "between"
        one.rename(between)
        other.rename(one)
        between.rename(other)

    def unlink(self) -> None:
        self.some("file").unlink()

    def rmtree(self) -> None:
        path = self.some("directory")
        if path != self.root and self.rng.random() < 0.3:
            shutil.rmtree(path)

    def remake(self) -> None:
        path = self.some("directory")
        if path != self.root:
            shutil.rmtree(path)
            path.mkdir()

    def mkdir(self) -> None:
        self.new().mkdir()

    def mode(self) -> None:
        path = self.some()
        if not path.is_symlink():
            path.chmod(self.rng.choice([0o644, 0o755, 0o600, 0o4755, 0o700]))

    def link(self) -> None:
        os.link(self.some("file"), self.new())

    def transient_link(self) -> None:
        """`ln a b; write b; rm b`: no event and no time of a's own name tells of it, only its ctime."""
        path, other = self.some("file"), self.root / "transient"
        os.link(path, other)
        with open(other, "r+b") as file:
            file.write(self.rng.randbytes(2))
        other.unlink()

    def symlink(self) -> None:
        self.new().symlink_to(self.rng.choice(["a1", "nowhere", "../..", "/nowhere/at/all"]))

    def fifo(self) -> None:
        if self.rng.random() < 0.2:
            os.mkfifo(self.new())

    def many(self) -> None:
        """A directory around the size where it becomes a trie."""
        if self.rng.random() < 0.1:
            directory = self.root / "many"
            directory.mkdir(exist_ok=True)
            for number in range(self.rng.randint(480, 560)):
                (directory / f"{number}").touch()
            for number in range(self.rng.randint(0, 60)):
                (directory / f"{number}").unlink(missing_ok=True)


def is_directory(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def is_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.parametrize("engine", ["scan", "watch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_random_call_is_missed(tmp_path: Path, seed: int, engine: str) -> None:
    print(f"PERDURE_FUZZ_SEED={seed}")
    root = tmp_path / "root"
    root.mkdir()
    workspace = Workspace(os.open(root, os.O_RDONLY), str(root), str(tmp_path / "state"), own=True, capture=engine)
    scanned = Workspace(workspace.root_fd, str(root), str(tmp_path / "scanned"), own=True)
    why: dict[str, int] = {}
    caller = Caller(root, random.Random(seed))
    store: set[str] = set()
    base = None
    for number in range(CALLS):
        caller.call()
        capture = workspace.capture(base)
        why[workspace.engine.why] = why.get(workspace.engine.why, 0) + 1
        tree, times = walk(os.fsencode(root))
        image = capture["image"]
        assert (image["tree"], image["times"]) == (tree.hex(), times.hex()), f"seed {seed}, call {number}"
        twin = scanned.capture(base)
        scanned.staging.settle(twin["image"])
        told = ["changed", "not_held", "entries", "total_bytes"]
        if capture["changed"] != ["."]:
            assert [capture[part] for part in told] == [twin[part] for part in told], f"seed {seed}, call {number}"
        assert workspace.index.root is not None
        assert counted(workspace.index.root) == (workspace.index.root.entries, workspace.index.root.size_bytes)
        assert bool(capture["changed_count"]) == (base is not None and image_key(image) != image_key(base))
        store |= {digest for digest in capture["chunks"] if sha(workspace.staging.read(digest)).hex() == digest}
        assert store >= set(reachable(workspace)), f"seed {seed}, call {number}: something was not told"
        base = image
        if caller.rng.random() < 0.3:
            workspace.staging.settle(image)
        if caller.rng.random() < (0.1 if engine == "scan" else 0.02):
            workspace.save()
            workspace.engine.close()
            workspace = Workspace(workspace.root_fd, str(root), str(tmp_path / "state"), own=True, capture=engine)
        elif caller.rng.random() < 0.05:
            assert workspace.capture(base, audit=True)["image"]["tree"] == image["tree"]
    workspace.engine.close()
    print(f"PERDURE_FUZZ_ENGINE={engine} {why}")


def counted(folder: Folder) -> tuple[int, int]:
    entries, size = len(folder.keys), sum(key[1] for key in folder.keys.values())
    for below in folder.folders.values():
        more = counted(below)
        entries, size = entries + more[0] + 1, size + more[1]
    return entries, size


def image_key(image: dict[str, str]) -> tuple[str, str]:
    return image["tree"], image["times"]


def reachable(workspace: Workspace) -> list[str]:
    """Every chunk that the newest image needs, by the index."""
    out = []
    assert workspace.index.root is not None
    stack = [workspace.index.root]
    while stack:
        folder = stack.pop()
        out += [folder.tree.hex(), folder.times.hex()]
        for name, payload in folder.held.items():
            if payload[:1] != b"l":
                out.append(payload[-32:].hex())
            out += [row.digest.hex() for row in folder.rows.get(name, ())]
        stack += folder.folders.values()
    return out
