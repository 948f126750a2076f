"""Files that come with an input: stored before the input is admitted, so that what names them is never without them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from perdure.log.store import BlobStore
from perdure.model.images import MAX_BYTES, MAX_IMAGES, media_type
from perdure.record.errors import UsageError
from perdure.record.parts import Blob, Digest, printable
from perdure.space import content

Image = str | os.PathLike[str] | bytes
"""The path of a file, or the bytes of one."""


async def attach(blobs: BlobStore, images: Iterable[Image], *, pin: str) -> tuple[Blob, ...]:
    """The images, stored, and kept for an hour under `pin` until a record names them. Raises UsageError, before anything is stored."""
    read = await asyncio.to_thread(looked_at, tuple(images))

    async def put(batch: Sequence[tuple[Digest, bytes]]) -> None:
        await blobs.put(batch, pin=pin)

    parts = []
    for name, data, kind in read:
        digest, size_bytes, _ = await content.store(_whole(data), put)
        parts.append(Blob(digest, size_bytes, kind, name))
    return tuple(parts)


def looked_at(images: Sequence[Image]) -> list[tuple[str, bytes, str]]:
    """Name, bytes and media type of each. Raises UsageError for what can't go to a model."""
    if len(images) > MAX_IMAGES:
        raise UsageError(f"{len(images)} images are too many for one prompt; at most {MAX_IMAGES} go with it")
    return [_read(image) for image in images]


def _read(image: Image) -> tuple[str, bytes, str]:
    if isinstance(image, bytes):
        name, data = "image", image
    else:
        path = Path(image).expanduser()
        name = printable(path.name)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"the image {printable(str(image))} can't be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the image {name} is larger than {MAX_BYTES // 1_000_000} MB, and no provider takes that; make it smaller"
        )
    kind = media_type(data)
    if kind is None:
        raise UsageError(f"{name} is no PNG, JPEG, GIF or WebP image")
    return name, data, kind


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
