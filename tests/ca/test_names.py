"""Names: what may be written into a certificate, and what may not."""

import pytest

from ca.names import (
    check_host_name,
    check_name_pattern,
    check_spiffe_id,
    check_trust_domain,
    parse_network,
)


@pytest.mark.parametrize("name", ["a", "gpu-01.nodes.lab.example", "1a.example", "a" * 63 + ".b"])
def test_lower_case_ldh_names_are_host_names(name: str) -> None:
    assert check_host_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "GPU-01.lab",
        "gpu_01.lab",
        "-a.lab",
        "a-.lab",
        "a" * 64 + ".lab",
        ".".join(["a" * 60] * 5),
        "10.20.0.11",
        "lab.1",
        "*.lab",
        "a b\n",
        "bücher.lab",
    ],
)
def test_anything_else_is_no_host_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        check_host_name(name)


@pytest.mark.parametrize("domain", ["", "Lab.example", "lab:443", "user@lab", "a" * 256, "lab/x", "lab%41"])
def test_a_trust_domain_follows_the_spiffe_rule(domain: str) -> None:
    assert check_trust_domain("lab_1.example-2") == "lab_1.example-2"
    with pytest.raises(ValueError, match="trust domain"):
        check_trust_domain(domain)


@pytest.mark.parametrize(
    "uri",
    [
        "not a uri",
        "https://lab.example/node/a",
        "SPIFFE://lab.example/node/a",
        "spiffe://lab.example",
        "spiffe://lab.example/",
        "spiffe://lab.example/node/",
        "spiffe://lab.example/node//a",
        "spiffe://lab.example/node/../a",
        "spiffe://Lab.Internal/node/gpu 01",
        "spiffe://lab.example/node/a?x=1",
        "spiffe://lab.example/node/a#x",
        "spiffe://lab.example/node/%41",
        "spiffe://lab.example:443/node/a",
        "spiffe://u@lab.example/node/a",
        "spiffe://lab.example/" + "a" * 2048,
    ],
)
def test_a_spiffe_id_needs_its_exact_form(uri: str) -> None:
    assert check_spiffe_id("spiffe://lab.example/node/gpu-01") == ("lab.example", "node/gpu-01")
    with pytest.raises(ValueError, match=r"SPIFFE|path"):
        check_spiffe_id(uri)


@pytest.mark.parametrize(
    "pattern",
    [
        "nodes.lab.example",
        "{node}",
        "{node}{node}.lab",
        "a.{node}.lab",
        "{node}.Lab",
        "{name}.lab",
        "{node}_.lab",
    ],
)
def test_a_pattern_has_its_node_once_in_its_first_label(pattern: str) -> None:
    assert check_name_pattern("n-{node}.lab.example") == "n-{node}.lab.example"
    with pytest.raises(ValueError, match=r"node|host name"):
        check_name_pattern(pattern)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.0.0.1/16", "is written 10.0.0.0/16"),
        ("10.0.0.1", "no prefix length"),
        ("10.0.0.0/33", "not an address range"),
        ("FD00::/64", "is written fd00::/64"),
        ("10.0.0.0/255.255.0.0", "is written 10.0.0.0/16"),
        ("lab", "not an address range"),
    ],
)
def test_a_range_is_written_in_one_way_only(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_network(text)
