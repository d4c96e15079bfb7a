"""What people really hand to node-inventory import: pipes, spreadsheets of other lands, wrong files, two at once."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from inventory.errors import BadInput
from inventory.export.plain import write_csv
from inventory.importing import read_list
from inventory.importing_files import read_texts
from inventory.importing_record import compare, put, read_lists
from inventory.store import Store
from inventory.ticket import RECEIPT_NAMESPACE, sign_receipt
from tests.inventory.kit import keygen, receipt, signers_line
from tests.inventory.test_import import CSV, FULL, OTHER, UUID, faults, on_record, take
from tests.inventory.test_import_command import command

GENEROUS_S = 120.0


def many(count: int) -> str:
    return "name,uuid\n" + "".join(f"n-{n},{UUID[:-6]}{n:06x}\n" for n in range(count))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path / 'record.db'}")


def piped(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = ["import", "-", *arguments, "--inventory", f"sqlite:///{folder / 'record.db'}"]
    return subprocess.run(
        [sys.executable, "-c", "from inventory.cli import main; main()", *words],
        input=text, capture_output=True, text=True, check=False, timeout=GENEROUS_S,
    )  # fmt: skip


def test_a_list_is_read_from_stdin_and_its_faults_say_so(tmp_path: Path) -> None:
    done = piped(tmp_path, FULL)
    wrong = piped(tmp_path, f"name,uuid,vmid\ngpu-22,{OTHER},7")

    assert (done.returncode, done.stdout) == (0, "gpu-21\tawaiting-identity\timported\n")
    assert wrong.returncode == 2
    assert "<stdin>:2:vmid: vmid: should be greater than or equal to 100" in wrong.stderr


def test_a_receipt_in_a_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    holder = keygen(tmp_path, "holder")
    signers = tmp_path / "signers"
    signers.write_text(signers_line(holder, name="holder@lab", options=f'namespaces="{RECEIPT_NAMESPACE}"'))
    signed = sign_receipt(receipt(), key_file=holder)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(signed,), daemon=True)
    writer.start()

    through_stdin = piped(tmp_path, signed, "--receipt-signers", str(signers))
    through_pipe = command(tmp_path, str(pipe), "--receipt-signers", str(signers))
    writer.join(GENEROUS_S)

    for done in (through_stdin, through_pipe):  # it is believed, and then there is no such node
        assert f"{receipt().node} is not on record" in done.stderr


def test_files_that_cannot_be_read_are_told_at_once_and_keep_the_others_out(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(CSV)
    (tmp_path / "excel.csv").write_bytes(b"name,uuid,note\ngpu-23,x,M\xfcller\n")
    (tmp_path / "wide.csv").write_bytes(CSV.encode("utf-16"))

    done = command(
        tmp_path, *(str(tmp_path / name) for name in ("good.csv", "none", "excel.csv", "wide.csv", "."))
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'none'}: No such file or directory" in done.stderr
    assert f"{tmp_path}: Is a directory" in done.stderr
    for name in ("excel.csv", "wide.csv"):
        assert f"{tmp_path / name}: it is not UTF-8; save it so (in Excel: CSV UTF-8)" in done.stderr
    assert not (tmp_path / "record.db").exists()


def test_what_is_larger_than_any_list_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(64 * 1024 * 1024 + 1)

    with pytest.raises(BadInput, match="is larger than"):
        read_texts([tmp_path / "large"])
    with pytest.raises(BadInput, match="is larger than"):
        read_texts([Path("/dev/zero")])


def test_what_was_taken_for_a_receipt_is_named_where_nobodys_receipts_count(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(f'{{"name": "gpu-21", "uuid": "{UUID}"}}')

    done = command(tmp_path, str(tmp_path / "node.json"))

    assert done.returncode == 2
    assert f"(taken for receipts: {tmp_path / 'node.json'})" in done.stderr


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_spreadsheet_of_a_land_with_decimal_commas_is_a_list_as_well(separator: str) -> None:
    text = (
        f"name;uuid;macs;host_keys;note\r\n"
        f'gpu-21;{UUID};bc:24:11:00:01:21;"ssh-ed25519 {"A" * 8}";"May, by hand"\r\n;;;;\r\n'
    ).replace(";", separator)

    told = faults("\N{ZERO WIDTH NO-BREAK SPACE}" + text, "nodes.csv")
    (good,) = read_list(text.replace(f'"ssh-ed25519 {"A" * 8}"', ""), name="nodes.csv")

    assert [line.partition(": ")[0] for line in told] == ["nodes.csv:2:host_keys"]
    assert (good.told.name, good.told.macs, good.told.note) == (
        "gpu-21",
        ("bc:24:11:00:01:21",),
        "May, by hand",
    )


def test_a_csv_export_says_which_export_can_be_imported(store: Store) -> None:
    take(store, FULL)
    out = io.StringIO()
    write_csv(store.all(), out)

    assert faults(out.getvalue(), "nodes.csv") == [
        "nodes.csv:1:state: export --format csv is for spreadsheets and lacks facts; import an export of --format json"
    ]


def test_titles_of_another_case_are_told_once_with_the_right_word() -> None:
    assert faults(f"Name;UUID;VM ID\ngpu-21;{UUID};121\n", "nodes.csv") == [
        "nodes.csv:1:Name: Name: unknown column (did you mean name?)",
        "nodes.csv:1:UUID: UUID: unknown column (did you mean uuid?)",
        "nodes.csv:1:VM ID: VM ID: unknown column (did you mean vmid?)",
    ]


def test_what_is_there_twice_is_told_together_with_all_other_faults() -> None:
    text = f"name,uuid,vmid\ngpu-21,{UUID},121\ngpu-22,{OTHER},7\ngpu-23,{UUID},121\n"

    assert faults(text, "nodes.csv") == [
        "nodes.csv:3:vmid: vmid: should be greater than or equal to 100",
        f"nodes.csv:4:uuid: uuid: {UUID} is there twice, the first is gpu-21's at nodes.csv:2:uuid",
        "nodes.csv:4:vmid: vmid: 121 is there twice, the first is gpu-21's at nodes.csv:2:vmid",
    ]


def test_of_two_who_import_one_list_at_once_the_later_has_nothing_to_change(store: Store) -> None:
    entries = read_lists([("nodes.yaml", FULL)])
    same = compare(entries, store)
    take(store, FULL)

    (done,) = put(entries, same, store, dry_run=False)

    assert (done.changed, done.error, done.node) == (False, None, on_record(store))
    assert len(store.history("gpu-21")) == 1


def test_of_two_lists_that_differ_the_later_is_refused_where_they_do(store: Store) -> None:
    entries = read_lists([("nodes.csv", f"name,uuid,user\ngpu-21,{UUID},root\ngpu-22,{OTHER},root\n")])
    same = compare(entries, store)
    take(store, f"name,uuid,user\ngpu-21,{UUID},admin\n")

    first, second = put(entries, same, store, dry_run=False)

    assert first.error is not None
    assert "somebody else did meanwhile" in first.error.why
    assert second.changed


def test_an_import_that_is_killed_is_finished_by_typing_it_again(tmp_path: Path) -> None:
    count = 60
    (tmp_path / "nodes.csv").write_text(many(count))
    url = f"sqlite:///{tmp_path / 'record.db'}"
    words = ["import", str(tmp_path / "nodes.csv"), "--inventory", url]
    store = Store.open(url)
    running = subprocess.Popen(
        [sys.executable, "-c", "from inventory.cli import main; main()", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + GENEROUS_S
    while not any(store.summaries()) and time.monotonic() < until:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait(GENEROUS_S)
    before = {node.name for node in store.summaries()}

    again = command(tmp_path, str(tmp_path / "nodes.csv"))

    told = dict(line.split("\t")[::2] for line in again.stdout.splitlines())
    assert again.returncode == 0, again.stderr
    assert {name for name, what in told.items() if what == "nothing to change"} == before
    assert len(told) == count
    assert all(len(store.history(name)) == 1 for name in told)
