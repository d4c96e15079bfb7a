"""A run over its nodes: the question before it, the words after it."""

import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from inventory.console import Console
from inventory.errors import ExitCode, Refused
from inventory.model import Node, State
from inventory.store import utc_now
from inventory.ticket import Receipt, sign_receipt
from provision.run import Result, Run, Wish, exit_code
from provision.spec import load_site
from tests.provision.kit import Place


def run(
    place: Place, *, yes: bool = True, later: timedelta = timedelta(), **wish: Any
) -> tuple[tuple[Result, ...], str]:
    stderr = io.StringIO()
    results = Run(
        Wish(("gpu-01",), **wish),
        site=load_site(place.site_file),
        road=place.road(),
        store=place.store,
        console=Console(stderr=stderr, environ={}),
        confirm=lambda _question: yes,
        now=utc_now() + later,
    ).all()
    return results, stderr.getvalue()


def record(place: Place) -> Node:
    node = place.store.get("gpu-01")
    assert node is not None
    return node


def test_no_is_taken_for_an_answer(place: Place) -> None:
    with pytest.raises(Refused, match="the answer was no"):
        run(place, yes=False)

    assert place.requests.writes == []
    assert place.store.get("gpu-01") is None


def test_an_expired_ticket_is_told_with_the_way_to_a_new_one(place: Place) -> None:
    run(place)

    (result,), _ = run(place, later=timedelta(hours=25))

    assert "has expired" in result.warnings[0]
    assert "--reissue-ticket" in result.warnings[0]


def test_a_node_in_service_goes_back_only_after_a_question(place: Place) -> None:
    run(place)
    move(place, State.ONBOARDING, State.AWAITING_VERIFICATION, State.VERIFYING, State.IN_SERVICE)

    with pytest.raises(Refused, match="the answer was no"):
        run(place, yes=False, reissue=True)
    assert record(place).state is State.IN_SERVICE
    run(place, reissue=True)
    assert record(place).state is State.AWAITING_IDENTITY


def test_a_node_that_is_being_onboarded_gets_no_new_ticket(place: Place) -> None:
    run(place)
    move(place, State.ONBOARDING)

    (result,), _ = run(place, reissue=True)

    assert isinstance(result.error, Refused)
    assert record(place).state is State.ONBOARDING


def test_a_node_that_leaves_is_not_changed(place: Place) -> None:
    run(place)
    move(place, State.RETIRING)

    (result,), _ = run(place)

    assert result.error is not None
    assert result.error.why == "it is retiring"
    assert exit_code([result], detailed=False) is ExitCode.REFUSED


def test_a_receipt_is_told_with_its_signer(place: Place) -> None:
    run(place)
    place.write_site(receipt_signers="receipt_signers")
    keep_receipt(place, vm_uuid=str(record(place).uuid))
    public = (place.folder / "id_infra.pub").read_text()
    (place.folder / "receipt_signers").write_text(f'holder namespaces="muster-receipt" {public}')

    _, told = run(place)

    assert "gpu-01: onboarded by holder, identity 0a until " in told


def test_a_receipt_that_is_not_believed_is_a_warning(place: Place) -> None:
    run(place)
    place.write_site(receipt_signers="allowed_signers")
    keep_receipt(place, vm_uuid=str(record(place).uuid))

    (result,), _ = run(place)

    assert "is not believed" in result.warnings[0]


def test_a_receipt_for_another_vm_is_a_warning(place: Place) -> None:
    run(place)
    place.write_site(receipt_signers="receipt_signers")
    keep_receipt(place, vm_uuid="11111111-2222-3333-4444-555555555555")
    public = (place.folder / "id_infra.pub").read_text()
    (place.folder / "receipt_signers").write_text(f"holder {public}")

    (result,), _ = run(place)

    assert "is for another VM" in result.warnings[0]


def test_the_worst_node_tells_the_exit_code() -> None:
    refused = Result("a", error=Refused("x", why="y", next_step="z"))

    assert exit_code([Result("b"), refused], detailed=False) is ExitCode.REFUSED
    assert exit_code([Result("b")], detailed=True) is ExitCode.DONE


def move(place: Place, *states: State) -> None:
    for state in states:
        place.store.save(replace(record(place), state=state), why="a test")


def keep_receipt(place: Place, *, vm_uuid: str) -> None:
    node = record(place)
    assert node.address is not None
    now = utc_now().replace(microsecond=0)
    receipt = Receipt(
        kind="onboarded", node=node.name, vm_uuid=vm_uuid, ticket_id="0b", serial="0a",
        spiffe_id="spiffe://lab.example/node/gpu-01", not_after=now + timedelta(days=30), host_keys=node.host_keys,
        address=node.address, ssh_port=22, user="muster", ca_fingerprint="0c", install_dir="/etc/muster",
        owner="muster", made_by="holder", made_at=now,
    )  # fmt: skip
    place.store.save(replace(node, receipt=sign_receipt(receipt, key_file=place.folder / "id_infra")))
