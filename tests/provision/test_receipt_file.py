"""The holder's word as a file: what retires a node where infra and the holder have no common record."""

from dataclasses import replace

import pytest

from inventory.model import State
from tests.provision.kit import Place, make, state
from tests.provision.leaving import keep_receipt, made, record, trust_the_holder, vmids


def handed_over(place: Place, *, name: str = "gpu-01") -> str:
    """The holder's receipt as a file, and on no record of infra's; its path."""
    trust_the_holder(place)
    text = str(keep_receipt(place, "decommissioned", name=name).receipt)
    place.store.save(replace(record(place, name), receipt=None))
    file = place.folder / f"{name}.receipt"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("moved", [(), (State.ONBOARDING, State.AWAITING_VERIFICATION), (State.ONBOARDING,)])
def test_a_receipt_as_a_file_is_enough(place: Place, moved: tuple[State, ...]) -> None:
    made(place, *moved)
    file = handed_over(place)

    plan = place.run("gpu-01", "--retire", "--receipt", file, "--plan")
    done = place.run("gpu-01", "--retire", "--receipt", file, "--yes")

    assert "its identity 0a was ended by holder" in plan.stdout
    assert done.returncode == 0, done.stderr
    assert state(place) is State.RETIRED
    assert record(place).receipt is not None
    assert "orphan" not in " ".join(event.why for event in place.store.history("gpu-01"))


def test_a_folder_of_receipts_serves_several_nodes(place: Place) -> None:
    for name in ("gpu-01", "gpu-02"):
        made(place, State.ONBOARDING, name=name)
        handed_over(place, name=name)

    done = place.run("gpu-[01-02]", "--retire", "--receipt", str(place.folder), "--yes")

    assert done.returncode == 0, done.stderr
    assert vmids(place) == [9000]


def test_it_is_believed_for_its_own_vm_alone(place: Place) -> None:
    made(place)
    file = handed_over(place)
    make(place.road(), "gpu-02")

    done = place.run("gpu-02", "--retire", "--receipt", file, "--yes")

    assert done.returncode == 3
    assert "is for gpu-01" in done.stderr
    assert vmids(place) == [9000, 100, 101]


def test_a_ticket_that_was_made_since_may_have_become_another_identity(place: Place) -> None:
    made(place)
    file = handed_over(place)
    later = record(place)
    place.run("gpu-01", "--reissue-ticket")

    done = place.run("gpu-01", "--retire", "--receipt", file, "--yes")

    assert later.ticket != record(place).ticket
    assert done.returncode == 3
    assert "not the last word on it: it was made at" in done.stderr
    assert vmids(place) == [9000, 100]


def test_a_receipt_of_somebody_else_is_not_believed(place: Place) -> None:
    made(place)
    file = handed_over(place)
    (place.folder / "receipt_signers").write_text("# nobody\n")

    assert place.run("gpu-01", "--retire", "--receipt", file, "--yes").returncode == 3
    assert vmids(place) == [9000, 100]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["gpu-01", "--receipt", "x"], "add --retire"),
        (["gpu-01", "--retire", "--orphan-identity", "--receipt", "x"], "do not go together"),
        (["gpu-[01-02]", "--retire", "--receipt", "/dev/null"], "is not a folder"),
    ],
)
def test_a_receipt_that_cannot_be_meant_is_wrong_usage(place: Place, arguments: list[str], word: str) -> None:
    done = place.run(*arguments, "--yes")

    assert done.returncode == 2
    assert word in done.stderr
    assert place.requests == []


def test_a_receipt_that_is_not_there_is_told(place: Place) -> None:
    made(place)

    done = place.run("gpu-01", "--retire", "--receipt", "/nowhere", "--yes")

    assert done.returncode == 2
    assert "was not read from /nowhere" in done.stderr
