import csv
import io
import json
import string

from hypothesis import given
from hypothesis import strategies as st

from inventory.export.plain import COLUMNS, write_csv, write_json
from inventory.model import Node, State
from tests.inventory.exports import NOW, node, text_of
from tests.inventory.kit import KEY

TEXTS = st.text(max_size=40)


def as_json(*nodes: Node) -> str:
    return text_of(lambda out: write_json(nodes, out, now=NOW))


def as_csv(*nodes: Node) -> str:
    return text_of(lambda out: write_csv(nodes, out))


def test_json_is_one_document_with_a_line_for_each_node() -> None:
    text = as_json(node("gpu-01", not_after=NOW), node("gpu-02", State.VERIFY_FAILED, reason="no NVLink"))

    told = json.loads(text)
    assert (told["schema"], told["exported_at"]) == (1, "2026-11-30T12:00:00Z")
    first, second = told["nodes"]
    assert (first["name"], first["state"], first["address"], first["vmid"]) == (
        "gpu-01",
        "in-service",
        "10.0.0.7",
        5000,
    )
    assert first["host_keys"] == [
        {"type": KEY.type, "base64": KEY.base64, "fingerprint": KEY.fingerprint},
    ]
    assert first["fabrics"][0]["mtu"] == 9000
    assert first["certificate_not_after"] == "2026-11-30T12:00:00Z"
    assert (second["reason"], second["next"], second["command"]) == (
        "no NVLink",
        "security",
        "verify-node gpu-02",
    )
    assert len(text.splitlines()) == 4


def test_nodes_that_were_only_told_of_are_infras_and_not_adopted() -> None:
    told = node("gpu-01", State.AWAITING_IDENTITY, spec_hash=None)

    (only,) = json.loads(as_json(told))["nodes"]
    assert (only["adopted"], only["next"]) == (False, "infra")


def test_no_signed_text_and_no_journal_leaves_the_record() -> None:
    secretive = node(ticket="SIGNED-TICKET", receipt="SIGNED-RECEIPT", journal={"task": "UPID:pve1"})

    for text in (as_json(secretive), as_csv(secretive)):
        assert not any(word in text for word in ("SIGNED", "UPID", "journal"))


def test_an_empty_record_is_an_empty_document_and_a_line_of_titles() -> None:
    assert json.loads(as_json()) == {"schema": 1, "exported_at": "2026-11-30T12:00:00Z", "nodes": []}
    assert as_csv() == ",".join(f'"{column}"' for column in COLUMNS) + "\r\n"


def test_csv_has_a_column_for_each_fact_that_fits_in_a_cell() -> None:
    bare = Node("gpu-02", State.PLANNED)
    (first, second) = csv.DictReader(io.StringIO(as_csv(node(), bare), newline=""))

    assert set(json.loads(as_json(bare))["nodes"][0]) - set(COLUMNS) == {"spec_hash", "version"}
    assert (first["address"], first["host_keys"], first["fabrics"], first["has_ticket"]) == (
        "10.0.0.7",
        KEY.fingerprint,
        "fabric0=",
        "false",
    )
    assert (second["name"], second["vmid"], second["address"]) == ("gpu-02", "", "")


@given(TEXTS, TEXTS)
def test_a_text_of_the_record_is_never_a_formula_and_never_another_line(reason: str, site: str) -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv(node(reason=reason, site=site)), newline=""))

    for cell, text in ((row["reason"], reason), (row["site"], site)):
        assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001
        assert cell.removeprefix("'") == text.removeprefix("'")
        assert cell == text or cell == f"'{text}"


@given(TEXTS)
def test_a_text_of_the_record_comes_out_of_json_as_it_was(reason: str) -> None:
    assert json.loads(as_json(node(reason=reason)))["nodes"][0]["reason"] == reason


def test_every_line_of_csv_ends_in_cr_lf_as_rfc_4180_says() -> None:
    text = as_csv(node(reason=string.printable), node("gpu-02"))

    assert text.endswith("\r\n")
    assert text.count('"name"') == 1
    assert len(list(csv.reader(io.StringIO(text, newline=""), strict=True))) == 3
