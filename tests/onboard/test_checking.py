"""onboard-node --check: the kind of a file and all its faults, for every file of ours."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inventory import signature
from inventory.errors import BadInput
from inventory.ticket import RECEIPT_NAMESPACE, sign_receipt, sign_ticket
from onboard.checking import KINDS, check, kind_of
from tests.inventory.kit import receipt
from tests.onboard.kit import ticket
from tests.require import need_command
from tests.sshd import keygen

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_EXAMPLES = {
    "agent.yaml": "agent",
    "ceremony.yaml": "ceremony",
    "ceremony-token.yaml": "ceremony",
    "nodes.yaml": "nodes",
    "nodes.csv": "nodes",
    "policy.yaml": "policy",
    "server.yaml": "server",
    "site.yaml": "site",
    "site-pinned.yaml": "site",
    "user-data.yaml": "user-data",
}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A ticket and a receipt as they travel."""
    need_command("ssh-keygen")
    key = keygen(tmp_path_factory.mktemp("key") / "id")
    return {
        "ticket": sign_ticket(ticket(), key_file=key),
        "receipt": sign_receipt(receipt(), key_file=key),
        "swapped": signature.sign(
            sign_ticket(ticket(), key_file=key).partition("\n")[0], key_file=key, namespace=RECEIPT_NAMESPACE
        ),
    }


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("onboard-node")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("name", OF_EXAMPLES)
def test_every_example_is_known_by_its_keys_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    unnamed = (tmp_path / name).rename(tmp_path / "x")
    if name == "site.yaml":  # it names the user-data that must lie beside it
        assert (tmp_path / "user-data.yaml").exists()

    found = check(unnamed)

    assert (found.kind, found.faults) == (OF_EXAMPLES[name], ())


def test_every_kind_is_shown_by_an_example_or_signed() -> None:
    assert {*OF_EXAMPLES.values(), "ticket", "receipt"} == {*KINDS}


def test_every_fault_comes_with_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text('trust_domain: lab.example\nnmaes: ["{node}.a.example"]\nlifetime_days: "30"\n')

    found = check(file)

    assert found.kind == "policy"
    assert [str(fault).removeprefix(f"{tmp_path}/") for fault in found.faults] == [
        "x.yaml:1:1: names: required key is missing",
        "x.yaml:2:1: nmaes: unknown key (did you mean names?)",
        "x.yaml:3:1: lifetime_days: should be a valid integer",
    ]


@pytest.mark.parametrize(
    ("keys", "name", "kind"),
    [
        (("proxmox", "profiles"), "x", "site"),
        (("proxmxo", "profils"), "x", "site"),
        (("trust_domain",), "policy.yaml", "policy"),
        (("trust_domain",), "our-ceremony.yml", "ceremony"),
        (("trust_domain",), "x", None),
        (("node", "identity"), "site.yaml", "agent"),
        (("wholly", "else"), "server.yaml", "server"),
        (("wholly", "else"), "x", None),
        ((), "site.yaml", "site"),
        ((), "site-policy.yaml", None),
    ],
)
def test_keys_tell_the_kind_and_the_name_decides_between_two(
    keys: tuple[str, ...], name: str, kind: str | None
) -> None:
    assert kind_of(keys, Path(name)) == kind


@pytest.mark.parametrize(
    ("content", "place", "word"),
    [
        (b"", "", "empty"),
        (b"a: [", ":1:5", "not YAML"),
        (b"- 1", ":1:1", "mapping"),
        (b"what: 1", ":1:1", "do not tell which of our files"),
        (b"\xff\xfe", "", "not UTF-8"),
        (b"#cloud-config\nhostname: x\n", ":2:1", "comes from the profile"),
    ],
)
def test_what_is_none_of_ours_is_a_fault_and_no_bug(
    tmp_path: Path, content: bytes, place: str, word: str
) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)

    (fault,) = check(file).faults

    assert fault.place.startswith(f"{file}{place}")
    assert word in fault.text


@pytest.mark.parametrize("kind", ["ticket", "receipt"])
@pytest.mark.parametrize("suffix", ["", "kind"])
def test_a_signed_paper_is_judged_by_form_and_signature(
    signed: dict[str, str], tmp_path: Path, kind: str, suffix: str
) -> None:
    file = tmp_path / f"x.{kind if suffix else 'txt'}"
    file.write_text(signed[kind])

    found = check(file)

    assert (found.kind, found.faults) == (kind, ())
    assert "SHA256:" in found.notes[0]
    assert "list of signers" in found.notes[0]


def test_a_changed_ticket_tells_where(signed: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "x.ticket"
    text = signed["ticket"].replace('"ssh_port":22', '"ssh_port":99999')
    file.write_text(text)
    at = text.index('"ssh_port"') + 1

    first, second = check(file).faults

    assert first.place == f"{file}:1:{at}"
    assert second.place == f"{file}:2:1"
    assert "does not hold" in second.text


def test_a_ticket_that_was_signed_as_a_receipt_does_not_hold(signed: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "x.ticket"
    file.write_text(signed["swapped"])

    (fault,) = check(file).faults

    assert "does not hold" in fault.text


@pytest.mark.parametrize("text", ["", "{}", "{}\n", "\x1b[2J", "{" * 5000])
def test_an_unsigned_paper_is_faulty(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.receipt"
    file.write_text(text)

    found = check(file)

    assert found.kind == "receipt"
    assert found.faults


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        check(tmp_path / "x")


def test_the_command_prints_the_kind_or_each_fault_and_says_it_by_its_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("node: gpu-07\nidentitee: {}\n")

    good, bad = run("--check", EXAMPLES / "agent.yaml"), run("--check", file)
    told = run("--check", file, "--json")
    document: dict[str, Any] = json.loads(told.stdout)

    assert (good.returncode, good.stdout) == (0, f"{EXAMPLES / 'agent.yaml'}\tagent\tOK\n")
    assert bad.returncode == told.returncode == 2
    assert bad.stdout.splitlines() == [fault["place"] + ": " + fault["text"] for fault in document["faults"]]
    assert (document["schema"], document["ok"], document["kind"]) == (1, False, "agent")
    assert [(fault["line"], fault["column"]) for fault in document["faults"]] == [(1, 1), (2, 1)]


def test_the_command_takes_no_node_beside_the_file() -> None:
    done = run("gpu-07", "--check", EXAMPLES / "agent.yaml")

    assert done.returncode == 2
    assert "one file" in done.stderr


def test_looking_at_a_file_needs_neither_network_nor_proxmoxs_library_nor_ssh(tmp_path: Path) -> None:
    """The command's own code runs where those modules cannot be had."""
    absent = ("proxmoxer", "requests", "paramiko", "pycdlib", "sqlalchemy")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import socket\n"
        "def refuse(*_): raise SystemExit('it dials')\n"
        "socket.socket.connect = refuse\n"
        "from pathlib import Path; from onboard.checking import check\n"
        f"print(*(check(file).kind for file in sorted(Path({str(EXAMPLES)!r}).iterdir()) if file.is_file()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.stderr == ""
    assert sorted({*done.stdout.split()}) == sorted({*OF_EXAMPLES.values()})
