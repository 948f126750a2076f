"""Which file systems a log may lie on.

WAL needs memory shared between processes and locks of one kernel; on a network or FUSE file system both can be absent without an error,
and two processes then overwrite each other's commits (https://sqlite.org/wal.html, "all processes must be on the same host").
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from perdure.record.errors import UsageError

_NETWORK = "9p afs beegfs ceph cifs coda gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs panfs smb3 smbfs afpfs webdav"
_FUSE = "fuse fuseblk macfuse osxfuse virtiofs vboxsf vmhgfs prl_fs"
REFUSED = frozenset(f"{_NETWORK} {_FUSE}".split())


def refuse_shared(path: Path) -> None:
    """UsageError if `path`, or what it would be made in, lies on a network or FUSE file system."""
    kind = kind_of(path)
    if kind in REFUSED or kind.startswith("fuse."):
        raise UsageError(
            f"{path} lies on a {kind} file system, where SQLite's locks and shared memory can't be trusted; "
            "choose a folder on a local disk (PERDURE_HOME)"
        )


class Mount(Struct, frozen=True):
    """`device` is (major, minor) as the kernel numbers the file system: what stat(2) says on most, but not on btrfs or overlayfs."""

    point: str
    kind: str
    device: tuple[int, int] = (0, 0)


def kind_of(path: Path) -> str:
    """The kernel's name of the file system that holds `path`; empty where it can't be told."""
    mount = mount_of(path)
    return "" if mount is None else mount.kind


def mount_of(path: Path) -> Mount | None:
    if sys.platform == "linux":
        return _deepest(path, _linux_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape")))
    if sys.platform == "darwin":
        listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True, timeout=10).stdout
        return _deepest(path, _darwin_mounts(listing))
    return None


def _deepest(path: Path, mounts: list[Mount]) -> Mount | None:
    """The last mounted of the longest mount points above `path`."""
    real, best = os.path.realpath(path), None
    for mount in mounts:
        inside = mount.point == "/" or real == mount.point or real.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _linux_mounts(mountinfo: str) -> list[Mount]:
    """proc_pid_mountinfo(5): the type follows the separator `-`, spaces in names are octal escapes."""
    mounts = []
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        major, minor = fields[2].split(":")
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        mounts.append(Mount(point, fields[fields.index("-") + 1], (int(major), int(minor))))
    return mounts


def _darwin_mounts(listing: str) -> list[Mount]:
    """Lines such as `/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)`."""
    mounts = []
    for line in listing.splitlines():
        source, _, rest = line.partition(" on ")
        point, _, options = rest.rpartition(" (")
        if source and point:
            mounts.append(Mount(point, options.partition(",")[0].rstrip(")")))
    return mounts
