import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.agent_config import AgentConfig, AgentFabric, Identity
from inventory.document import dump, load, loads
from inventory.errors import BadFile, BadInput
from inventory.server_config import ServerConfig, served_model

BASE = Path("/etc/muster")
GOOD = """\
node: gpu-07
identity: {cert_file: chain.pem, key_file: key.pem, ca_file: /etc/ssl/bundle.pem}
fabrics:
  - {name: fabric0, interface: eth1, rate_gbps: 400, mtu: 9000}
"""


def faults(text: str) -> list[str]:
    with pytest.raises(BadFile) as refused:
        loads(text, AgentConfig, name="agent.yaml", base=BASE)
    return [str(fault) for fault in refused.value.faults]


def test_a_relative_path_is_relative_to_the_files_folder() -> None:
    config = loads(GOOD, AgentConfig, name="agent.yaml", base=BASE)

    assert config.identity.cert_file == BASE / "chain.pem"
    assert config.identity.ca_file == Path("/etc/ssl/bundle.pem")


def test_every_fault_is_told_at_once_with_its_place() -> None:
    told = faults(
        "node: gpu-07\n"
        "identity: {cert_file: c, key_fil: k, ca_file: 3}\n"
        "fabrics:\n"
        "  - {name: f, interface: eth1, rate_gpbs: 400, mtu: '9000'}\n"
        "extra: no\n"
    )

    assert told == [
        "agent.yaml:2:1: identity.key_file: required key is missing",
        "agent.yaml:2:26: identity.key_fil: unknown key (did you mean key_file?)",
        "agent.yaml:2:38: identity.ca_file: should be a valid string (put it in quotes if it is meant as text)",
        "agent.yaml:4:32: fabrics[0].rate_gpbs: unknown key (did you mean rate_gbps?)",
        "agent.yaml:4:48: fabrics[0].mtu: should be a valid integer",
        "agent.yaml:5:1: extra: unknown key",
    ]


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("", "agent.yaml:1:1", "empty"),
        ("node: [1", "agent.yaml:1:9", "not YAML"),
        ("node: a\nnode: b\n", "agent.yaml:2:1", "twice"),
        ("- node", "agent.yaml:1:1", "mapping"),
        ("\tnode: a", "agent.yaml:1:1", "not YAML"),
        ("node: &loop {a: *loop}", "agent.yaml:1:7", "alias"),
        ("node: !!python/object:os.system x", "agent.yaml:1:7", "tag"),
        ("? [a, b]\n: 1\n", "agent.yaml:1:3", "plain word"),
        ("node: .nan", "agent.yaml:1:7", "finite"),
        ("a: 1\n---\nb: 2\n", "agent.yaml:2:1", "not YAML"),
    ],
)
def test_what_is_no_plain_document_is_refused_with_its_place(text: str, place: str, word: str) -> None:
    (told,) = faults(text)

    assert told.startswith(place)
    assert word in told


@pytest.mark.parametrize("text", ["no", "off", "22:22", "2026-11-30"])
def test_words_that_yaml_1_1_would_change_stay_words(text: str) -> None:
    config = loads(GOOD.replace("fabric0", text), AgentConfig, name="agent.yaml", base=BASE)

    assert config.fabrics[0].name == text


def test_a_number_in_quotes_is_no_number_and_a_number_is_no_text() -> None:
    assert "should be a valid number" in faults(GOOD.replace("400", "'400'"))[0]
    assert "should be a valid string" in faults(GOOD.replace("gpu-07", "012"))[0]


def test_octal_hexadecimal_and_underscored_numbers_are_those_of_yaml_1_2() -> None:
    config = loads(GOOD.replace("9000", "0x2328"), AgentConfig, name="agent.yaml", base=BASE)

    assert config.fabrics[0].mtu == 9000


@given(
    name=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    path=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=40),
    rate=st.none() | st.floats(min_value=0.1, max_value=1e6),
    mtu=st.none() | st.integers(min_value=576, max_value=65520),
)
def test_what_is_dumped_loads_equal(name: str, path: str, rate: float | None, mtu: int | None) -> None:
    file = Path("/") / path
    identity = Identity(cert_file=file, key_file=file, ca_file=file)
    fabric = AgentFabric(name=path, interface="eth1", rate_gbps=rate, mtu=mtu)
    config = AgentConfig(node=name, identity=identity, fabrics=(fabric,))

    assert loads(dump(config), AgentConfig, name="dumped", base=Path("/")) == config


@given(st.text(max_size=200))
def test_any_text_ends_in_values_or_in_faults(text: str) -> None:
    with contextlib.suppress(BadFile):
        loads(text, AgentConfig, name="any", base=BASE)


def test_a_file_that_cannot_be_read_or_is_not_text_says_so(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"node: \xe4\n")
    with pytest.raises(BadInput, match="No such file"):
        load(tmp_path / "absent.yaml", AgentConfig)
    with pytest.raises(BadFile, match="not UTF-8 at byte 6"):
        load(latin, AgentConfig)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    huge.write_text("node: " + "a" * 1024 * 1024 + "\n")

    with pytest.raises(BadFile, match="larger than"):
        load(huge, AgentConfig)


def test_a_replicas_world_size_comes_from_its_shape(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    shape = "nnodes: 2, tensor_parallel: 8, pipeline_parallel: 2"
    file.write_text(f"models:\n  - {{name: m, source: 'hf://m', engine: vllm, {shape}}}\n")

    assert served_model(file, "m").world_size == 16
    with pytest.raises(BadInput, match="no model 'n'"):
        served_model(file, "n")


def test_ranks_that_do_not_fill_their_nodes_are_a_fault() -> None:
    text = "models:\n  - {name: m, source: s, engine: sim, nnodes: 3, tensor_parallel: 8}\n"
    with pytest.raises(BadFile, match="do not spread evenly"):
        loads(text, ServerConfig, name="server.yaml", base=BASE)
