"""The lines between `gcr run` and its starter."""

import os

import pytest

from gcr.errors import GcrError, NameTaken
from gcr.protocol.begun import Begun, Line, Surroundings


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (Begun("llm", 4711), b'{"job": "llm", "pid": 4711}\n'),
        (Begun("llm", log="/logs/llm"), b'{"job": "llm", "log": "/logs/llm"}\n'),
        (Surroundings(), b'{"environment": null, "folder": null}\n'),
        (Surroundings({"A": os.fsdecode(b"caf\xe9")}, "/"), b'{"environment": {"A": "caf\\udce9"}, "folder": "/"}\n'),
    ],
)
def test_what_is_said_is_heard(line: Line, said: bytes) -> None:
    assert line.to_line() == said
    assert type(line).from_line(said) == line


def test_the_word_of_a_job_that_runs_is_kept_and_a_refusal_is_raised_with_its_type() -> None:
    assert Begun("llm", 4711).checked() == Begun("llm", 4711)
    refused = Begun.refused(NameTaken("llm runs already", hint="gcr ps"))
    with pytest.raises(NameTaken, match="llm runs already") as caught:
        Begun.from_line(refused.to_line()).checked()
    assert caught.value.hint == "gcr ps"


@pytest.mark.parametrize("said", [b"", b"\xff", b"[]", b'{"job": 5}', b'{"job": "llm", "pid": "5"}', b'{"error": "x"}'])
def test_a_line_of_another_shape_is_a_typed_error(said: bytes) -> None:
    with pytest.raises(GcrError, match="no Begun"):
        Begun.from_line(said)


def test_a_starter_that_hears_nothing_of_a_job_says_so() -> None:
    with pytest.raises(GcrError):
        Begun.from_line(b"{}").checked()
