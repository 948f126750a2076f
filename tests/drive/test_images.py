"""Images beside a prompt: stored as chunks, sent as the provider wants them, and refused before anything is stored."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from perdure.model.images import MAX_BYTES, MAX_IMAGES, media_type
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import Blob
from tests.drive.test_asking import at
from tests.model.chat_server import chat_server, end, says, text
from tests.stage import play, stage

PNG = b"\x89PNG\r\n\x1a\n" + b"small"
LARGE = b"\xff\xd8\xff" + random.Random(1).randbytes(2_500_000)
"""Of several chunks."""


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (LARGE, "image/jpeg"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", None),
        (b"<svg/>", None),
        (b"", None),
    ],
)
def test_what_an_image_is_is_told_by_its_first_bytes(data: bytes, kind: str | None) -> None:
    assert media_type(data) == kind


def test_images_reach_the_model_whole_also_from_another_driver_and_after_a_collection(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "photo.txt").write_bytes(LARGE)
        answers = says(*text("A cat."), *end()), says(*text("Yes."), *end())
        async with chat_server(*answers) as server:
            async with stage(tmp_path, "unused", **at(server)) as s:
                assert (await s.run("what is this?", images=[PNG, tmp_path / "photo.txt"])).text == "A cat."
                (admitted,) = await s.bodies(r.SubmissionAdmitted)
                blobs = [part for part in admitted.parts if isinstance(part, Blob)]
                assert [(b.media_type, b.name, b.size_bytes) for b in blobs] == [
                    ("image/png", "image", len(PNG)),
                    ("image/jpeg", "photo.txt", len(LARGE)),
                ]
                await s.opened.collect()
            async with stage(tmp_path) as s:
                await s.run("sure?")
            for n in range(2):
                content = server.sent(n)["messages"][1]["content"]
                assert content[0] == {"type": "text", "text": "what is this?"}
                sent = [part["image_url"]["url"].split(",", 1) for part in content[1:]]
                assert [head for head, _ in sent] == ["data:image/png;base64", "data:image/jpeg;base64"]
                assert [base64.b64decode(data) for _, data in sent] == [PNG, LARGE]

    play(story())


def test_what_is_no_image_is_refused_and_nothing_is_admitted(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "a.png").write_text("not really")
        (tmp_path / "huge.png").write_bytes(PNG + bytes(MAX_BYTES))
        async with stage(tmp_path, "unused") as s:
            for image, words in (
                (tmp_path / "a.png", r"a\.png is no PNG, JPEG, GIF or WebP image"),
                (tmp_path / "huge.png", r"huge\.png is larger than 5 MB"),
                (tmp_path / "nowhere.png", r"nowhere\.png can't be read: No such file"),
                (tmp_path, "can't be read: Is a directory"),
            ):
                with pytest.raises(UsageError, match=words):
                    await s.session.submit("look", images=[image])
            with pytest.raises(UsageError, match="21 images are too many"):
                await s.session.submit("look", images=[PNG] * (MAX_IMAGES + 1))
            assert not await s.bodies(r.SubmissionAdmitted)

    play(story())


def test_the_same_request_with_the_same_image_is_one_submission(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "a cat") as s:
            for _ in range(2):
                await s.session.submit("look", request_id="r", images=[PNG])
            with pytest.raises(UsageError):
                await s.session.submit("look", request_id="r", images=[PNG + b"!"])
            assert (await s.run("look", request_id="r", images=[PNG])).text == "a cat"
            assert len(await s.bodies(r.SubmissionAdmitted)) == 1

    play(story())
