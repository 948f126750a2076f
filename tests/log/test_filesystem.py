"""A home on a network or FUSE file system is refused, with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.log import filesystem
from perdure.log.conformance import refused
from perdure.log.sqlite import SqliteStore
from perdure.record.errors import UsageError

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/share rw - nfs4 server:/export rw
31 22 0:41 / /mnt/share/local rw - xfs /dev/sdb1 rw
32 22 0:42 / /home/ada/my\\040files rw master:3 - fuse.sshfs ada@host: rw
33 22 0:43 / /over rw - nfs server:/a rw
34 33 0:44 / /over rw - tmpfs tmpfs rw
"""

DARWIN = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//ada@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by ada)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/x/y", "nfs4"),
        ("/mnt/sharebutnot", "ext4"),
        ("/mnt/share/local/x", "xfs"),
        ("/home/ada/my files/x", "fuse.sshfs"),
        ("/over/x", "tmpfs"),
    ],
)
def test_the_innermost_and_last_mount_counts(path: str, kind: str) -> None:
    mount = filesystem._deepest(Path(path), filesystem._linux_mounts(MOUNTINFO))
    assert mount is not None and mount.kind == kind


def test_macos_says_it_in_its_own_way() -> None:
    mounts = filesystem._darwin_mounts(DARWIN)
    assert filesystem._deepest(Path("/Volumes/share/home"), mounts) == filesystem.Mount("/Volumes/share", "smbfs")
    assert filesystem._deepest(Path("/Users/ada"), mounts) == filesystem.Mount("/", "apfs")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "fuse", "9p", "virtiofs"])
def test_such_a_home_is_refused_before_anything_is_made(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "kind_of", lambda path: kind)

    async def run() -> None:
        error = await refused(UsageError, SqliteStore.open(tmp_path / "home"))
        assert kind in str(error) and str(tmp_path / "home") in str(error)
        assert not (tmp_path / "home").exists()

    asyncio.run(run())


def test_this_machines_disk_is_told_and_accepted(tmp_path: Path) -> None:
    filesystem.refuse_shared(tmp_path)
    if Path("/proc/self/mountinfo").exists():
        assert filesystem.kind_of(Path("/proc")) == "proc"
