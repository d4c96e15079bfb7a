"""node-inventory import as a person types it: lists of nodes, receipts, and both at once."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from inventory.ticket import RECEIPT_NAMESPACE, sign_receipt
from tests.inventory.kit import keygen, receipt, signers_line
from tests.inventory.test_import import EXAMPLES, FULL, OTHER


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-c", "from inventory.cli import main; main()", "import", *arguments,
            "--inventory", f"sqlite:///{folder / 'record.db'}",
        ],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_the_command_imports_tells_and_says_whose_move_it_is(tmp_path: Path) -> None:
    done = command(tmp_path, str(EXAMPLES / "nodes.yaml"), str(EXAMPLES / "nodes.csv"))
    again = command(tmp_path, str(EXAMPLES / "nodes.yaml"), "--json")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"gpu-{n}\tawaiting-identity\timported" for n in (21, 22, 31, 32)]
    assert "next, for infra: provision-node gpu-21 --adopt, and the same for 3 more" in done.stderr
    document = json.loads(again.stdout)
    assert (document["ok"], document["receipts"]) == (True, [])
    assert [(node["changed"], node["next"]) for node in document["nodes"]] == [(False, "infra")] * 2


def test_a_fault_in_one_list_keeps_all_files_out(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(f"name,uuid\ngpu_40,{OTHER[:-1]}0\n")

    done = command(tmp_path, str(EXAMPLES / "nodes.yaml"), str(tmp_path / "bad.csv"))

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'bad.csv'}:2:name: name: 'gpu_40' cannot name a node" in done.stderr
    assert "nothing was changed" in done.stderr
    assert not (tmp_path / "record.db").exists()


def test_a_receipt_and_a_list_go_together_and_the_list_comes_first(tmp_path: Path) -> None:
    holder = keygen(tmp_path, "holder")
    (tmp_path / "signers").write_text(
        signers_line(holder, name="holder@lab", options=f'namespaces="{RECEIPT_NAMESPACE}"')
    )
    (tmp_path / "gpu-21.receipt").write_text(sign_receipt(replace(receipt(), node="gpu-21"), key_file=holder))
    (tmp_path / "nodes.yaml").write_text(FULL)

    done = command(
        tmp_path, str(tmp_path / "gpu-21.receipt"), str(tmp_path / "nodes.yaml"),
        "--receipt-signers", str(tmp_path / "signers"), "--json",
    )  # fmt: skip

    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert [node["name"] for node in document["nodes"]] == ["gpu-21"]
    assert "it is for VM" in document["receipts"][0]["error"]["why"]


def test_lists_alone_need_nobody_whose_receipts_count(tmp_path: Path) -> None:
    receipt_file = tmp_path / "x.receipt"
    receipt_file.write_text("{}")

    assert command(tmp_path, str(EXAMPLES / "nodes.yaml"), "--dry-run").returncode == 0
    assert "nobody is named whose receipts count" in command(tmp_path, str(receipt_file)).stderr
