"""Ways out of the record as a user meets them: a subprocess, its streams, its exit code, its file."""

import csv
import io
import json
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from inventory.errors import BadInput
from inventory.export import Form
from inventory.export.writing import write
from inventory.files import writing_whole
from inventory.model import Node, State
from inventory.store import Store
from inventory.ticket import sign_receipt
from tests.inventory.exports import BIN, NOW, node, record, run
from tests.inventory.kit import keygen, receipt

HOSTS = ("--known-hosts", "/etc/muster/hosts")
FLEET = (
    node("gpu-01"),
    node("gpu-02", State.VERIFY_FAILED, reason="no NVLink"),
    node("gpu-03", State.PLANNED, address=None),
)


def beside(file: Path) -> list[str]:
    """What else lies in the folder of a file, the record apart."""
    return sorted(each.name for each in file.parent.iterdir() if not each.name.startswith("record.db"))


@pytest.mark.parametrize("form", [Form.CSV, Form.SSH_CONFIG, Form.PROMETHEUS])
def test_a_file_is_replaced_by_what_the_form_writes(form: Form, tmp_path: Path) -> None:
    url, file, meant = record(tmp_path, *FLEET), tmp_path / "out.prom", io.StringIO(newline="")
    write(form, Store.open(url).each(), meant, now=NOW, known_hosts=Path(HOSTS[1]))
    file.write_text("before")
    done = run("export", "--format", str(form), *HOSTS, "-o", str(file), url=url)

    assert (done.returncode, done.stdout) == (0, "")
    lines, expected = (text.split("\n") for text in (file.read_bytes().decode(), meant.getvalue()))
    assert sum(a != b for a, b in zip(lines, expected, strict=True)) <= 1  # the time
    assert file.stat().st_mode & 0o777 == (0o600 if form in (Form.JSON, Form.CSV) else 0o644)
    assert beside(file) == ["out.prom"]
    assert f"written to {file} as {form}" in done.stderr


def test_what_receipts_say_comes_out_of_either_database(url: str, tmp_path: Path) -> None:
    store, said = Store.open(url), receipt()
    signed = sign_receipt(said, key_file=keygen(tmp_path, "holder"))
    store.add(node("gpu-01", uuid=said.vm_uuid, receipt=signed), why="a test")
    out = io.StringIO()
    write(Form.PROMETHEUS, store.each(), out, now=NOW, known_hosts=None)

    end = int(said.not_after.timestamp())
    assert f'certificate_not_after_timestamp_seconds{{node="gpu-01"}} {end}\n' in out.getvalue()


@pytest.mark.parametrize("asked", [(), ("--json", "-o", "-")], ids=["by itself", "asked for"])
def test_without_a_format_it_is_json_on_stdout(asked: tuple[str, ...], tmp_path: Path) -> None:
    done = run("export", *asked, url=record(tmp_path, *FLEET))

    assert [each["name"] for each in json.loads(done.stdout)["nodes"]] == ["gpu-01", "gpu-02", "gpu-03"]


def test_json_beside_a_file_tells_what_was_written_and_what_was_not(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    asked = ("export", "--format", "known-hosts", "-o", str(file), "--json")
    done = run(*asked, url=record(tmp_path, *FLEET))

    assert json.loads(done.stdout) == {
        "schema": 1,
        "format": "known-hosts",
        "output": str(file),
        "nodes": 2,
        "left_out": 1,
    }
    assert "1 is not in it: without an address" in done.stderr


def test_nodes_and_states_choose(tmp_path: Path) -> None:
    url = record(tmp_path, *FLEET)

    def names(*asked: str) -> list[str]:
        done = run("export", "--format", "csv", *asked, url=url)
        return [row["name"] for row in csv.DictReader(io.StringIO(done.stdout))]

    assert names("--state", "planned", "--state", "in-service") == ["gpu-01", "gpu-03"]
    assert names("gpu-03", "gpu-[01-02]", "--state", "verify-failed", "--state", "planned") == [
        "gpu-02",
        "gpu-03",
    ]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("gpu-[01-09]",), "not on record: gpu-04, gpu-05, gpu-06, gpu-07, gpu-08, gpu-09"),
        (("gpu-[9-1]",), "runs backwards"),
        (("--format", "csv", "--json"), "--format csv is none"),
        (("--format", "ssh-config"), "which host keys to believe"),
        (("--format", "ansible", "--known-hosts", "/a b"), "blanks, quotes"),
        (("--format", "prometheus", "gpu-01"), "a count of some nodes"),
        (("--state", "broken"), "in-service"),
        (("--format", "ssh-config", "--known-hosts", "{out}"), "the file of host keys, which would be lost"),
        (("--format", "ansible", "--known-hosts", "{out}"), "the file of host keys, which would be lost"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    asked: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    wants_stdout = "--json" in asked
    words = [word.format(out=file) for word in asked]
    done = run("export", *words, *([] if wants_stdout else ["-o", str(file)]), url=record(tmp_path, *FLEET))

    assert (done.returncode, done.stdout) == (2, "")
    assert why in " ".join(done.stderr.split())
    assert file.read_text() == "before"


def test_a_record_that_nobody_ever_used_is_told_of_beside_the_empty_file(tmp_path: Path) -> None:
    empty = f"sqlite:///{tmp_path / 'record.db'}"
    done = run("export", "--format", "prometheus", "-o", str(tmp_path / "muster.prom"), url=empty)
    used = run("export", "--state", "retired", url=record(tmp_path, *FLEET))

    assert (done.returncode, used.returncode) == (0, 0)
    assert f"warning: nothing was ever on record in {tmp_path / 'record.db'}" in done.stderr
    assert "warning" not in used.stderr


def test_a_faulty_node_is_told_of_and_the_others_are_exported(tmp_path: Path) -> None:
    url = record(tmp_path, node("gpu-01"), node("gpu-02", user="x\n  ProxyCommand y"))
    done = run("export", "--format", "ssh-config", *HOSTS, url=url)
    listed = run("ansible", "--list", url=url)

    assert (done.returncode, listed.returncode) == (0, 0)
    assert "warning: gpu-02 is left out: 'x\\n  ProxyCommand y' is not a user name" in done.stderr
    assert "ProxyCommand" not in done.stdout + listed.stdout
    assert list(json.loads(listed.stdout)["_meta"]["hostvars"]) == ["gpu-01"]


def test_ansible_without_pins_is_warned_of_and_a_textfile_of_another_name_too(tmp_path: Path) -> None:
    url = record(tmp_path, *FLEET)
    lax, named = (
        run("export", "--format", "ansible", "-o", str(tmp_path / "hosts.ini"), url=url),
        run("export", "--format", "prometheus", "-o", str(tmp_path / "muster.txt"), url=url),
    )

    assert "warning: no --known-hosts FILE" in lax.stderr
    assert "end in .yaml" in lax.stderr
    assert "end in .prom alone" in named.stderr


@pytest.mark.parametrize("asked", [(), ("--list", "--host", "gpu-01")])
def test_an_inventory_script_that_is_called_otherwise_is_refused(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("ansible", *asked, url=record(tmp_path, *FLEET))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "next: see node-inventory ansible --help" in done.stderr


def test_host_prints_the_variables_of_one_node(tmp_path: Path) -> None:
    done = run("ansible", "--host", "gpu-02", *HOSTS, url=record(tmp_path, *FLEET))

    told = json.loads(done.stdout)
    assert (told["muster_reason"], told["ansible_host"]) == ("no NVLink", "10.0.0.7")
    assert "UserKnownHostsFile=/etc/muster/hosts" in told["ansible_ssh_args"]
    assert done.stderr == ""


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = run("export", "-o", str(tmp_path / "absent/out"), url=record(tmp_path, *FLEET))

    assert done.returncode == 2
    assert f"error: {tmp_path}/absent/out was not written\n  why: No such file" in done.stderr


@pytest.mark.parametrize("place", ["", ".", "/"])
def test_a_place_without_a_name_is_refused_in_words(place: str, tmp_path: Path) -> None:
    done = run("export", "-o", place, url=record(tmp_path, *FLEET))

    assert (done.returncode, done.stdout) == (2, "")
    assert "was not written\n  why: it is there, and is no file" in done.stderr


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(tmp_path: Path) -> None:
    other, link = tmp_path / "theirs", tmp_path / "nodes.json"
    other.write_text("before")
    link.symlink_to(other)

    done = run("export", "-o", str(link), url=record(tmp_path, *FLEET))

    assert done.returncode == 0
    assert not link.is_symlink()
    assert len(json.loads(link.read_text())["nodes"]) == len(FLEET)
    assert other.read_text() == "before"


@pytest.mark.parametrize("place", [Path("/dev/null"), Path("/tmp")])
def test_what_is_no_file_is_not_replaced_by_one(place: Path) -> None:
    with pytest.raises(BadInput, match="is no file"), writing_whole(place):
        pass

    assert not place.is_file()


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "muster.prom"
    file.write_text("old")
    with file.open() as reader:
        with writing_whole(file, mode=0o644) as out:
            out.write("ne")
            out.flush()
            assert file.read_text() == "old"
            assert [name for name in beside(file) if name.endswith(".prom")] == ["muster.prom"]
            out.write("w")
        assert (reader.read(), file.read_text()) == ("old", "new")


def half(file: Path, failure: Exception) -> None:
    with writing_whole(file) as out:
        out.write("half")
        raise failure


@pytest.mark.parametrize(
    ("failure", "told"), [(KeyError("x"), KeyError), (OSError(28, "No space left on device"), BadInput)]
)
def test_a_failure_or_a_full_disk_leaves_the_old_file(
    failure: Exception, told: type[Exception], tmp_path: Path
) -> None:
    file = tmp_path / "muster.prom"
    file.write_text("old")

    with pytest.raises(told, match=r"x|No space left"):
        half(file, failure)
    assert (file.read_text(), beside(file)) == ("old", ["muster.prom"])


@pytest.mark.parametrize("form", [Form.JSON, Form.CSV, Form.PROMETHEUS])
def test_memory_does_not_grow_with_the_record(form: Form) -> None:
    def fleet(count: int) -> Iterator[Node]:
        return (node(f"gpu-{number}", not_after=NOW, verified_at=NOW) for number in range(count))

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            with open(os.devnull, "w", encoding="utf-8") as out:  # noqa: PTH123
                assert write(form, fleet(count), out, now=NOW, known_hosts=None).written == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is made once
    few, many = peak(1000), peak(2000)
    assert many < few + 100_000  # 1000 nodes are half a megabyte and more


def test_a_reader_who_has_read_enough_is_no_failure(tmp_path: Path) -> None:
    url = record(tmp_path, *(node(f"gpu-{number}") for number in range(40)))
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as cut:
        done = subprocess.run(
            [BIN / "node-inventory", "export", "--format", "csv"],
            stdout=cut,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "MUSTER_INVENTORY": url},
        )

    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_printed_is_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    url = record(tmp_path, node(reason="Lüfter steht"))
    done = subprocess.run(
        [BIN / "node-inventory", "export"],
        capture_output=True,
        check=True,
        timeout=600,
        env={**os.environ, "MUSTER_INVENTORY": url, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
    )

    assert json.loads(done.stdout.decode("utf-8"))["nodes"][0]["reason"] == "Lüfter steht"
