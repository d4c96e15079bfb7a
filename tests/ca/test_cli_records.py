"""node-ca list, export, audit and issue-many, as a person or a script meets them."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from ca.cli_records import FormatName
from ca.export import Format, write
from ca.layout import Layout
from tests.ca.filled import record_of
from tests.ca.material import NOW, policy_text, request
from tests.ca.test_cli import SECRET, Done, node_ca, node_cas

NODES = ("gpu-01", "gpu-02", "gpu-03")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that certified three nodes from a list; gpu-01 has lost its certificate again."""
    place = tmp_path_factory.mktemp("records")
    (place / "policy.yaml").write_text(policy_text())
    (place / "passphrase").write_text(f"{SECRET}\n")
    (place / "passphrase").chmod(0o600)
    (place / "requests").mkdir()
    for node in NODES:
        (place / "requests" / f"{node}.csr").write_bytes(request())
    listed = [{"csr": f"requests/{node}.csr", "node": node} for node in NODES]
    listed[1]["addresses"] = ["10.0.0.7"]  # type: ignore[assignment]  # YAML
    (place / "requests.yaml").write_text(json.dumps({"certificates": listed}))
    secret = ("--passphrase-file", str(place / "passphrase"))
    made, issued, revoked = node_cas(
        ["init", "--policy", str(place / "policy.yaml"), *secret],
        many(place, "requests.yaml", "--yes", "--json", *secret),
        ["revoke", "gpu-01", "--reason", "superseded", "--yes"],
        folder=place,
    )
    assert (made.code, issued.code, revoked.code) == (0, 0, 0), (made.err, issued.err, revoked.err)
    (place / "issued.json").write_text(issued.out)
    return place


def many(place: Path, requests: str, *more: str) -> list[str]:
    return ["issue-many", str(place / requests), "--out", str(place / "out"), *more]


def rows(done: Done) -> list[list[str]]:
    assert done.code == 0, done.err
    return [line.split("\t") for line in done.out.splitlines()[1:]]


def test_many_requests_are_certified_and_each_node_gets_a_folder(folder: Path) -> None:
    said = json.loads((folder / "issued.json").read_text())

    assert [each["node"] for each in said["certificates"]] == [*NODES]
    assert len(said["audit_head"]) == 64
    assert sorted(path.name for path in (folder / "out").iterdir()) == [*NODES]
    for each in said["certificates"]:
        chain = x509.load_pem_x509_certificates((folder / "out" / each["node"] / "cert.pem").read_bytes())
        bundle = (folder / "out" / each["node"] / "bundle.pem").read_bytes()
        assert [f"{chain[0].serial_number:x}", len(chain)] == [each["serial"], 2]
        assert bundle == (folder / "ca" / "root.pem").read_bytes()


def test_many_requests_are_refused_before_a_passphrase_is_asked_for(folder: Path, tmp_path: Path) -> None:
    before = (folder / "ca" / "audit.jsonl").read_bytes()
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder / "requests", tmp_path / "requests")
    (tmp_path / "requests" / "Not A Node.csr").write_bytes(request())
    (tmp_path / "twice.yaml").write_text(
        json.dumps({"certificates": [{"csr": "requests/gpu-01.csr", "node": "gpu-01"}] * 2})
    )
    (tmp_path / "faulty.yaml").write_text("certificates: [{csr: a.csr, nodee: gpu-01}]\n")
    (tmp_path / "file").write_text("")

    overwriting, empty, refused, twice, faulty, no_folder, rehearsed = node_cas(
        many(folder, "requests"),
        many(tmp_path, "empty"),
        many(tmp_path, "requests"),
        many(tmp_path, "twice.yaml"),
        many(tmp_path, "faulty.yaml"),
        ["issue-many", str(tmp_path / "requests"), "--out", str(tmp_path / "file")],
        ["issue-many", str(folder / "requests"), "--out", str(tmp_path / "new"), "-n", "--json"],
        folder=folder,
    )

    assert (overwriting.code, empty.code, twice.code, faulty.code, no_folder.code) == (3, 2, 2, 2, 2)
    assert "gpu-01 exists, and 2 more" in overwriting.err
    assert "gpu-01: named twice" in twice.err
    assert "nodee: unknown key (did you mean node?)" in faulty.err
    assert refused.code in {2, 3}
    assert "Not A Node" in refused.err
    assert rehearsed.code == 0, rehearsed.err
    assert [each["node"] for each in rehearsed.document["would_issue"]] == [*NODES]  # type: ignore[attr-defined]  # JSON
    assert not (tmp_path / "new").exists()
    assert (folder / "ca" / "audit.jsonl").read_bytes() == before


def test_a_list_is_filtered_by_node_sets_state_and_end(folder: Path) -> None:
    everything, chosen, revoked, state, soon, far, nobody = node_cas(
        ["list"],
        ["list", "gpu-[01-02]", "--node", "gpu-03"],
        ["list", "--revoked"],
        ["list", "gpu-[02-09]", "--state", "issued", "--state", "failed"],
        ["list", "--expiring", "3w"],
        ["list", "--expiring", "40d", "--node", "gpu-[01-02]"],
        ["list", "--node", "gpu-09", "--json"],
        folder=folder,
    )

    assert [row[1:3] for row in rows(everything)] == [
        ["gpu-01", "revoked"],
        ["gpu-02", "issued"],
        ["gpu-03", "issued"],
    ]
    assert rows(chosen) == rows(everything)
    assert rows(revoked) == rows(everything)[:1]
    assert rows(state) == rows(everything)[1:]
    assert rows(soon) == []
    assert rows(far) == rows(everything)[1:2]
    assert nobody.document["certificates"] == []


def test_filters_that_make_no_sense_are_said_so(folder: Path) -> None:
    for told in node_cas(
        ["list", "--expiring", "soon"],
        ["list", "--expiring", "30d", "--revoked"],
        ["list", "gpu-[16-01]"],
        ["list", "--state", "lost"],
        ["export", "--format", "xml"],
        ["export", "--format", "pem", "--json"],
        folder=folder,
    ):
        assert (told.code, told.out) == (2, "")
        assert told.err


def test_an_export_says_in_each_format_what_the_list_says(folder: Path, tmp_path: Path) -> None:
    listed, as_json, as_csv, as_pem, to_file = node_cas(
        ["list", "--json"],
        ["export"],
        ["export", "--format", "csv"],
        ["export", "--format", "pem", "gpu-[01-02]"],
        ["export", "--format", "csv", "--out", str(tmp_path / "all.csv"), "--json"],
        folder=folder,
    )

    assert as_json.document == listed.document
    table = [*csv.DictReader(io.StringIO(as_csv.out))]
    assert [(row["node"], row["state"]) for row in table] == [
        ("gpu-01", "revoked"),
        ("gpu-02", "issued"),
        ("gpu-03", "issued"),
    ]
    leaves = x509.load_pem_x509_certificates(as_pem.out.encode())
    assert [f"{leaf.serial_number:x}" for leaf in leaves] == [row["serial"] for row in table[:2]]
    assert to_file.document["certificates"] == 3
    assert (tmp_path / "all.csv").read_text() == as_csv.out
    assert (tmp_path / "all.csv").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]
    assert [str(each) for each in Format] == [str(each) for each in FormatName]


def test_an_export_that_cannot_be_written_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    told = node_ca("export", "--out", str(tmp_path / "no" / "such" / "file"), folder=folder)

    assert told.code == 2
    assert "was not written" in told.err
    assert [*tmp_path.iterdir()] == []


def test_no_cell_of_a_table_is_taken_for_a_formula(tmp_path: Path) -> None:
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]
    plain = ["superseded", "a = b", 'he said "=1"', "two\nlines", ""]
    records = [replace(record_of(number), why=why) for number, why in enumerate([*formulas, *plain])]
    out = io.StringIO()

    count = write(Format.CSV, records, out, layout=Layout(tmp_path), now=NOW)

    table = [*csv.DictReader(io.StringIO(out.getvalue(), newline=""))]
    assert count == len(table) == len(records)
    assert [row["why"] for row in table] == [*(f"'{why}" for why in formulas), *plain]
    assert table[0]["host_keys"] == records[0].host_keys[0].line


def test_the_audit_is_verified_to_its_head(folder: Path) -> None:
    table, document = node_cas(["audit"], ["audit", "--json"], folder=folder)

    assert document.code == 0
    assert (document.document["ok"], document.document["entries"]) == (True, 8)
    assert rows(table) == [["lines", "8"], ["head", str(document.document["head"])]]
    (again,) = node_cas(["audit", "--expect", str(document.document["head"]), "--json"], folder=folder)
    assert again.document == {**document.document, "since_expected": 0}


def test_a_broken_or_older_audit_ends_with_six_and_its_line(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "ca", tmp_path / "ca")
    audit = tmp_path / "ca" / "audit.jsonl"
    lines = audit.read_bytes().splitlines(keepends=True)
    head = node_cas(["audit", "--json"], folder=folder)[0].document["head"]
    audit.write_bytes(b"".join(lines[:-1]))
    older, believed = node_cas(["audit", "--expect", str(head), "--json"], ["list"], folder=tmp_path)
    audit.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    broken, listed = node_cas(["audit", "--json"], ["list"], folder=tmp_path)
    (wrong,) = node_cas(["audit", "--expect", "5c1f"], folder=tmp_path)

    assert (older.code, older.document["ok"], older.document["line"]) == (6, False, None)
    assert "an older copy was put in its place" in older.err
    assert "warning: index.db was made anew from the audit: the audit is shorter" in believed.err
    assert (broken.code, broken.document["ok"], broken.document["line"]) == (6, False, 4)
    assert "line 4 does not follow from line 3" in broken.err
    assert (listed.code, listed.out) == (6, "")
    assert wrong.code == 2
