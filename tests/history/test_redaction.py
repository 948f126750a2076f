"""What is kept for others to read has no keys in it, and everything else."""

from __future__ import annotations

import pytest

from perdure.history.redaction import HIDDEN, Redaction

nothing_known = Redaction({})


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWx",
        "sk-proj-0123456789abcdef0123",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "ghp_0123456789abcdef0123456789abcdef0123",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-1234567890-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_has_the_shape_of_a_key_is_left_out(secret: str) -> None:
    assert nothing_known(f"before {secret} after") == f"before {HIDDEN} after"


def test_a_password_in_an_address_and_a_bearer_are_left_out() -> None:
    assert nothing_known("git clone https://me:hunter2@host/x") == f"git clone https://{HIDDEN}@host/x"
    assert nothing_known("Authorization: Bearer abcdefghijklmnop1234") == f"Authorization: Bearer {HIDDEN}"


def test_values_of_variables_that_name_themselves_secrets_are_left_out() -> None:
    known = Redaction(
        {
            "MY_SERVICE_TOKEN": "long enough",
            "DB_PASSWORD": "long enough to hide",
            "SSH_KEY": "/home/ada/.ssh/id",
            "TOKEN": "short",
        }
    )
    assert known("long enough to hide; long enough; /home/ada/.ssh/id; short") == f"{HIDDEN}; {HIDDEN}; /home/ada/.ssh/id; short"


def test_everything_else_stays() -> None:
    text = "task-list sk-learn skip 0123456789abcdef0123456789abcdef01234567 user@host:path monkey=banana https://host:8080/x@y"
    assert Redaction({"MONKEY": "banana-banana", "HOME": "/home/someone"})(text) == text
