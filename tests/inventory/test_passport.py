"""A passport tells a node's whole road; whatever is changed in it, or was never right, is refused and named."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ca import passport as ca_passport
from inventory.errors import Refused
from inventory.model import KeptReport, State
from inventory.passport import making, openssl
from inventory.passport.identity import Absent
from inventory.passport.statement import PREDICATE_TYPE, STATEMENT_TYPE, from_payload, to_payload
from inventory.ticket import sign_receipt, sign_ticket
from tests.ca.material import host_key
from tests.inventory.kit import keygen, signers_line
from tests.inventory.passports import BOTH, NAME, World, world
from tests.require import need_command

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world(tmp_path_factory.mktemp("passport"))


def test_a_passport_tells_the_whole_road_and_holds(gpu: World) -> None:
    passport = gpu.passport()
    verdict = gpu.judge(gpu.signed())

    assert verdict.ok, verdict.broken
    assert verdict.passport == passport
    assert verdict.signers == ("holder@lab",)
    assert passport.asked is not None
    assert passport.asked.actor == "anna"
    assert passport.asked.why == "asked for by Zoë — two lines:\nyes"
    assert [move.after for move in passport.events][-2:] == [State.VERIFYING, State.IN_SERVICE]
    assert passport.verification is not None
    assert [drill.name for drill in passport.verification.drills] == ["assemble", "killed-rank"]
    assert passport.verification.not_checked == ("GPUs", "between nodes")
    assert passport.verification.probe_sha256 == "ab" * 32
    assert [receipt.text for receipt in passport.receipts] == [kept.text for kept in gpu.known().receipts]
    assert passport.missing == ()


def test_what_holds_and_what_was_not_checked_is_said(gpu: World) -> None:
    told = gpu.judge(gpu.signed()).to_json()

    held = "\n".join(told["holds"])
    for words in (
        "signed by holder@lab",
        "the ticket was signed by operator@lab",
        "receipt 2, verified",
        "certificate's chain",
        "valid now",
        "one name in",
        "one uuid in",
        "one serial number in",
        "one identity in",
        "one root certificate in",
        "7 events make a road",
        "passed, 2 drills",
    ):
        assert words in held
    assert any("GPUs" in text for text in told["not_checked"])
    assert told["broken"] == []


def test_a_statement_is_read_back_as_it_was_written(gpu: World) -> None:
    payload = to_payload(gpu.passport())
    statement = json.loads(payload)

    assert from_payload(payload) == gpu.passport()
    assert (statement["_type"], statement["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    assert [subject["name"] for subject in statement["subject"]] == [NAME]
    assert statement["subject"][0]["digest"]["sha256"] == gpu.certificate.sha256


def test_nothing_is_left_out_without_a_word(gpu: World) -> None:
    known = replace(gpu.known(), reports=(), receipts=())
    passport = making.gather(known, certificate="the ledger was not read", maker=gpu.maker)

    assert {each.what for each in passport.missing} == {"receipts", "certificate", "verification"}
    with pytest.raises(ValueError, match="verification: left out"):
        replace(passport, missing=passport.missing[:-1])
    verdict = gpu.judge(gpu.signed(passport))
    assert verdict.ok, verdict.broken
    assert [each["what"] for each in verdict.to_json()["missing"]] == [each.what for each in passport.missing]


def test_a_run_of_some_scenarios_stands_for_no_verification(gpu: World) -> None:
    whole = gpu.known().reports[0]
    scenarios = whole.document["verification"]["scenarios"][:1]
    part = {**whole.document, "verification": {**whole.document["verification"], "scenarios": scenarios}}
    known = replace(gpu.known(), reports=(KeptReport(NAME, gpu.now, passed=True, document=part), whole))
    passport = making.gather(known, certificate=gpu.certificate, maker=gpu.maker)

    assert passport.verification == gpu.passport().verification
    assert [each.what for each in passport.missing] == ["later reports"]


def test_of_very_many_receipts_the_first_and_the_newest_are_in_it_and_the_others_are_counted(
    gpu: World,
) -> None:
    first, last = gpu.known().receipts
    many = [replace(last, text=f"{last.text}{' ' * number}") for number in range(100)]
    known = replace(gpu.known(), receipts=(first, *many[:-1], last))
    with pytest.raises(Refused, match="something follows it"):
        making.gather(known, certificate=gpu.certificate, maker=gpu.maker)
    passport = making.gather(
        replace(known, receipts=(first, *[last] * 99)), certificate=gpu.certificate, maker=gpu.maker
    )

    assert len(passport.receipts) == making.MAX_RECEIPTS
    assert (passport.receipts[0].text, passport.receipts[-1].text) == (first.text, last.text)
    assert [(each.what, each.why[:2]) for each in passport.missing] == [("receipts between", "36")]


def test_a_node_without_ticket_and_certificate_has_no_passport(gpu: World) -> None:
    known = gpu.known()
    bare = replace(known, node=replace(known.node, ticket=None), receipts=())
    passport = making.gather(bare, certificate="none", maker=gpu.maker)

    with pytest.raises(Refused, match="neither ticket, receipt nor certificate"):
        to_payload(passport)


def _other_name(statement: dict[str, Any]) -> None:
    statement["subject"][0]["name"] = statement["predicate"]["node"] = "gpu-02"


def _no_kind_of_drill(statement: dict[str, Any]) -> None:
    del statement["predicate"]["verification"]["drills"][1]


def _drill_failed(statement: dict[str, Any]) -> None:
    statement["predicate"]["verification"]["drills"][1]["ok"] = False


def _no_proof(statement: dict[str, Any]) -> None:
    statement["predicate"]["verification"]["passed"] = False


def _digest(part: str, key: str) -> Callable[[dict[str, Any]], None]:
    def change(statement: dict[str, Any]) -> None:
        statement["predicate"][part]["sha256"] = statement["subject"][0]["digest"][key] = "ab"

    return change


def _leap(statement: dict[str, Any]) -> None:
    statement["predicate"]["state"] = statement["predicate"]["events"][-1]["after"] = "retired"


def _event(number: int) -> Change:
    return lambda statement: statement["predicate"]["events"].pop(number)


def _in(*path: str | int, to: object) -> Change:
    def change(statement: dict[str, Any]) -> None:
        place: Any = statement
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_name, "the name differs: gpu-02 in the passport, gpu-01 in the ticket"),
        (_event(2), "event 3 leaves awaiting-identity, but the node was provisioning"),
        (_event(0), "event 1 leaves planned, but the node was nothing"),
        (_event(-1), "the last event leaves the node verifying, and it is said to be in-service"),
        (_in("predicate", "events", 0, "why", to="x"), "who asked is not who the first event names"),
        (_no_kind_of_drill, "passed without drills of both kinds"),
        (_drill_failed, "the verification passed, yet it failed in: killed-rank"),
        (_leap, "event 7 goes from verifying to retired, which no node may"),
        (_digest("ticket", "ticketSha256"), "the digest is not that of the text: the ticket"),
        (_digest("certificate", "sha256"), "the digest is not that of the text: the certificate"),
        (_no_proof, "in-service, and its last verification did not pass"),
        (_in("predicate", "vm", "uuid", to="0" * 35 + "1"), "the uuid differs"),
        (_in("predicate", "vm", "vmid", to=5001), "record and ticket differ in: vmid"),
        (_in("predicate", "certificate", "serial", to="ab12"), "the serial number differs"),
        (_in("predicate", "certificate", "spiffe_id", to="spiffe://x/node/gpu-01"), "the identity differs"),
        (_in("predicate", "certificate", "not_after", to="2027-01-01T00:00:00Z"), "the end of validity"),
        (_in("predicate", "certificate", "standing", to="revoked"), "ledger has the certificate as revoked"),
        (_in("predicate", "ticket", "made_by", to="x"), "the ticket names another maker"),
        (_in("predicate", "ticket", "key", to="x"), "ticket's key or fingerprint is not the one"),
        (_in("predicate", "receipts", 0, "key", to="x"), "receipt 1: its key is not the one"),
        (_in("predicate", "receipts", 0, "sha256", to="ab"), "digest is not that of the text: receipt 1"),
        (
            _in("predicate", "events", 6, "at", to="2026-11-30T12:30:00Z"),
            "after the passport itself: event 7",
        ),
    ],
)
def test_parts_that_contradict_each_other_are_refused_though_well_signed(
    gpu: World, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    verdict = gpu.judge(gpu.signed_anew(change))

    assert words in "\n".join(verdict.broken)
    with pytest.raises(Refused, match=r"file\.json is not believed"):
        verdict.refuse("file.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_in("predicate", "vm", "memory", to=1), "vm.memory"),
        (_in("predicate", "events", 0, "colour", to="red"), "events.0.colour"),
        (_in("more", to=1), "the statement's keys"),
        (_in("subject", to=[]), "exactly one subject"),
        (_in("subject", 0, "name", to="gpu-02"), "its subject is not gpu-01"),
        (_in("subject", 0, "digest", "sha256", to="ab"), "with the digests of certificate"),
        (_in("predicateType", to=PREDICATE_TYPE[:-1] + "2"), "is understood"),
        (_in("_type", to="https://in-toto.io/Statement/v0.1"), "its _type is"),
        (_in("predicate", "verification", to=None), "left out"),
        (_in("predicate", "made_at", to="2026-11-30T12:00:00+00:00"), "not written as we write it"),
        (_in("predicate", "events", 0, "after", to="flying"), "events.0.after"),
    ],
)
def test_a_statement_of_another_form_is_refused(
    gpu: World, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    with pytest.raises(Refused) as refused:
        gpu.judge(gpu.signed_anew(change))

    assert words in refused.value.why


def test_another_machines_ticket_in_its_place_is_refused(gpu: World) -> None:
    known = gpu.known()
    other = replace(gpu.ticket, vm_uuid="0e1a2b3c-0000-4000-8000-000000000002", id="cd34", vmid=5001)
    swapped = replace(known, node=replace(known.node, ticket=sign_ticket(other, key_file=gpu.infra)))
    passport = making.gather(swapped, certificate=gpu.certificate, maker=gpu.maker)
    broken = "\n".join(gpu.judge(gpu.signed(passport)).broken)

    assert "the uuid differs" in broken
    assert "the ticket's id differs: cd34 in the ticket, ab12 in the newest receipt" in broken
    with pytest.raises(Refused, match="no passport of gpu-01 was made"):
        making.sign(passport, key_file=gpu.holder, trust=gpu.trust)


def test_a_receipt_that_pins_another_host_key_than_the_ticket_is_refused(gpu: World) -> None:
    known = gpu.known()
    other = sign_receipt(replace(gpu.receipt, host_keys=(host_key(7),)), key_file=gpu.holder)
    passport = making.gather(
        replace(known, receipts=(replace(known.receipts[0], text=other),)),
        certificate=gpu.certificate,
        maker=gpu.maker,
    )

    broken = gpu.judge(gpu.signed(passport)).broken
    assert broken == ("the newest receipt pins an SSH host key that the ticket does not",)


def test_texts_whose_signers_do_not_count_are_refused(gpu: World, tmp_path: Path) -> None:
    mallory = keygen(tmp_path, "mallory")
    known = gpu.known()
    node = replace(known.node, ticket=sign_ticket(gpu.ticket, key_file=mallory))
    receipts = (
        *known.receipts[:1],
        replace(known.receipts[1], text=sign_receipt(gpu.receipt, key_file=mallory)),
    )
    passport = making.gather(
        replace(known, node=node, receipts=receipts), certificate=gpu.certificate, maker=gpu.maker
    )
    broken = "\n".join(gpu.judge(gpu.signed(passport)).broken)

    assert "the ticket is not believed: its signer is not in" in broken
    assert "receipt 2: the receipt is not believed: its signer is not in" in broken


def test_without_ticket_signers_and_roots_the_verdict_says_what_it_did_not_check(gpu: World) -> None:
    verdict = gpu.judge(gpu.signed(), ticket_signers=None, roots=None)

    assert verdict.ok
    unchecked = "\n".join(verdict.to_json()["not_checked"])
    assert "whether that key may sign tickets" in unchecked
    assert "the certificate's chain" in unchecked
    nobody = gpu.judge(gpu.signed(), judge=Absent("cryptography is not installed"))
    assert nobody.ok
    assert "cryptography is not installed" in "\n".join(nobody.to_json()["not_checked"])


def test_the_roots_of_another_authority_refuse_it(gpu: World, tmp_path: Path) -> None:
    other = world(tmp_path)

    verdict = gpu.judge(gpu.signed(), roots=other.root.read_text())
    assert verdict.broken == ("the certificate's root is not among the roots that were given",)
    both = gpu.judge(gpu.signed(), roots=other.root.read_text() + gpu.root.read_text())
    assert both.ok


def test_a_leaf_that_this_authority_did_not_sign_is_refused(gpu: World, tmp_path: Path) -> None:
    chain = (world(tmp_path).certificate.chain[0], *gpu.certificate.chain[1:])

    for judging in (ca_passport, openssl):
        assert ca_passport.faults(gpu.certificate.chain, roots=gpu.root.read_text(), at=gpu.now) == ()
        assert judging.faults(chain, roots=gpu.root.read_text(), at=gpu.now)


def test_an_authority_that_has_ended_refuses_it(gpu: World) -> None:
    years = gpu.now + timedelta(days=40 * 365)
    verdict = gpu.judge(gpu.signed())
    late = replace(gpu.passport(), made_at=years)

    assert verdict.ok
    for judging in (ca_passport, openssl):
        assert judging.faults(gpu.certificate.chain, roots=gpu.root.read_text(), at=years)
    with pytest.raises(Refused, match="yet to come"):
        gpu.judge(gpu.signed(late))
    found = replace(gpu, now=years).judge(gpu.signed(late))
    assert "the certificate ended at" in "\n".join(found.broken)


def test_a_node_that_stands_on_no_certificate_any_more_may_have_one_that_is_over(gpu: World) -> None:
    later = replace(gpu, now=gpu.now + timedelta(days=60))

    def back(statement: dict[str, Any]) -> None:
        told = statement["predicate"]
        told["state"], told["made_at"] = "awaiting-identity", f"{later.now:%Y-%m-%dT%H:%M:%SZ}"
        told["certificate"]["standing"] = "revoked"
        told["events"].append({**told["events"][-1], "before": "in-service", "after": "awaiting-identity"})

    verdict = later.judge(gpu.signed_anew(back))
    assert verdict.ok, verdict.broken
    assert any("had ended when the passport was made" in text for text in verdict.to_json()["notes"])


def test_a_certificate_that_has_ended_since_is_a_note(gpu: World) -> None:
    later = replace(gpu, now=gpu.now + timedelta(days=60))

    verdict = later.judge(gpu.signed())
    assert verdict.ok
    assert any("the certificate is not valid now" in text for text in verdict.to_json()["notes"])


def test_openssl_and_the_authority_read_one_certificate_alike(gpu: World) -> None:
    need_command("openssl")

    leaf = gpu.certificate.chain[0]
    assert openssl.leaf(leaf) == ca_passport.leaf(leaf)
    assert gpu.judge(gpu.signed(), judge=openssl).findings == gpu.judge(gpu.signed()).findings
    with pytest.raises(ValueError, match="openssl cannot read"):
        openssl.leaf("nothing")


def test_a_key_that_counts_no_more_is_a_note_and_one_that_did_not_yet_is_refused(
    gpu: World, tmp_path: Path
) -> None:
    signers = tmp_path / "signers"
    end = f'{BOTH},valid-before="{gpu.now + timedelta(seconds=30):%Y%m%d%H%M%SZ}"'
    signers.write_text(signers_line(gpu.holder, name="holder@lab", options=end))
    over = gpu.judge(gpu.signed(), signers=signers)
    assert over.ok
    assert any("does no more" in text for text in over.to_json()["notes"])

    begin = f'{BOTH},valid-after="{gpu.now + timedelta(seconds=30):%Y%m%d%H%M%SZ}"'
    signers.write_text(signers_line(gpu.holder, name="holder@lab", options=begin))
    with pytest.raises(Refused, match="not believed"):
        gpu.judge(gpu.signed(), signers=signers)
