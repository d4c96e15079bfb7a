"""What a node sends is untrusted: a stream that is not a probe's whole report is never a pass."""

from collections.abc import Callable
from typing import Any

import pytest

from inventory.errors import OtherSide
from verify.probe.tls import Identity
from verify.runner import Findings, Order, run_probe

from .probing import Recording, left_of, order
from .saying import BEGAN, Node, said, scenario, whole

ORDER = Order("gpu-01", "00" * 16, 8, ("assemble", "gate"), {}, None, 10.0)
WHOLE = whole(ORDER.scenarios)
DONE = WHOLE[-1]


def hear(lines: list[bytes], **other: Any) -> Findings:
    return run_probe(Node(lines, **other), ORDER)


def test_a_whole_report_is_taken() -> None:
    findings = hear(said(WHOLE))

    assert [result.name for result in findings.scenarios] == ["assemble", "gate"]
    assert findings.not_checked == tuple(WHOLE[-2]["items"])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda whole: whole[1:], "came before the probe said who it is"),
        (lambda whole: [*whole[:3], *whole[4:]], "told were assemble"),
        (lambda whole: [*whole[:2], *whole[4:]], "told were none"),
        (lambda whole: [*whole[:4], whole[3], *whole[4:]], "told were assemble, gate, gate"),
        (lambda whole: [*whole[:2], whole[3], whole[2], *whole[4:]], "told were gate, assemble"),
        (lambda whole: [*whole[:2], scenario("assemble", ok=False), *whole[3:]], "contradicts the scenarios"),
        (lambda whole: [*whole[:5], {**DONE, "ok": False}], "the verdict contradicts"),
        (lambda whole: [*whole[:2], scenario("assemble", ok="yes"), *whole[3:]], "valid boolean"),
        (lambda whole: [*whole[:2], scenario("assemble", seconds=-1), *whole[3:]], "greater than"),
        (lambda whole: [*whole[:2], scenario("assemble", detail="x" * 3000), *whole[3:]], "at most 2000"),
        (lambda whole: [*whole[:2], scenario("assemble", more=1), *whole[3:]], "not permitted"),
        (lambda whole: [whole[0], *[whole[1]] * 300], "more than 200 events"),
        (lambda whole: [{"event": "pass"}, *whole], "does not match any of the expected tags"),
    ],
)
def test_a_report_that_does_not_add_up_is_no_pass(
    spoil: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], why: str
) -> None:
    with pytest.raises(OtherSide) as refused:
        hear(said(spoil(list(WHOLE))))

    assert why in refused.value.why
    assert refused.value.what == "gpu-01 could not be verified"


@pytest.mark.parametrize(
    "line",
    [b"Welcome to gpu-01!", b"\xff\xfe", b"[]", b"{" * 5000, b"x" * 70000],
    ids=["greeting", "binary", "list", "nested", "long"],
)
def test_what_is_no_event_is_refused_with_advice(line: bytes) -> None:
    with pytest.raises(OtherSide) as refused:
        hear([line, *said(WHOLE)])

    assert "no event of the probe" in refused.value.why
    assert "login shell" in refused.value.next_step


def test_a_stream_that_ends_early_names_what_was_last_seen() -> None:
    node = Node(
        said([*WHOLE[:3], {"event": "scenario-started", "name": "gate"}]), status=255, stderr=b"gone\n"
    )
    with pytest.raises(OtherSide) as refused:
        run_probe(node, ORDER)

    assert "exit status 255: gone" in refused.value.why
    assert "last seen: scenario gate had begun" in refused.value.why
    assert node.killed


@pytest.mark.parametrize(
    ("status", "stderr", "advice"),
    [
        (127, b"env: 'python3': No such file or directory\n", "install python3"),
        (1, b"sudo: a password is required\n", "log in as the owner"),
        (1, b"muster: Python 3.9 or newer is needed, this is 3.6\n", "look at the node"),
    ],
)
def test_a_probe_that_cannot_start_is_told_with_its_remedy(status: int, stderr: bytes, advice: str) -> None:
    with pytest.raises(OtherSide) as refused:
        hear([], status=status, stderr=stderr)

    assert stderr.decode().strip() in refused.value.why
    assert advice in refused.value.next_step


def test_a_probe_that_fails_is_no_pass() -> None:
    with pytest.raises(OtherSide, match="the probe failed: OSError"):
        hear(said([BEGAN, {"event": "broken", "text": "OSError: no more processes"}]), status=70)


def test_an_interruption_on_this_side_ends_the_probe(good: Identity) -> None:
    def interrupt(_event: object) -> None:
        raise KeyboardInterrupt

    place = Recording()
    with pytest.raises(KeyboardInterrupt):
        run_probe(place, order(good, "missing-rank"), on_event=interrupt)

    assert place.process is not None
    assert left_of(place.process.pid) == []
