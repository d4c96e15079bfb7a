"""Every scenario passes on a good identity, and fails when the one thing that it watches over is broken."""

import datetime as dt
import re
from pathlib import Path

import pytest

from inventory.errors import BadInput
from verify.probe.tls import Identity
from verify.scenarios import NAMES, SCENARIOS, choose

from .identities import Authority, authority, identity, leaf_of, revocation_list
from .names import SPIFFE_ID
from .probing import broken, probe

_DAY = dt.timedelta(days=1)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def test_the_scenarios_are_these_and_each_kind_is_there() -> None:
    assert (
        *("assemble", "late-leader", "gate", "clean-shutdown"),
        *("missing-rank", "killed-rank", "frozen-rank", "killed-leader"),
        *("duplicate-rank", "wrong-world", "old-run", "stranger"),
        *(f"wrong-identity-{what}" for what in ("foreign-ca", "cn-only", "plain-tcp")),
        *(f"wrong-identity-{what}" for what in ("expired", "revoked", "wrong-node")),
        "port-taken",
    ) == NAMES
    assert [scenario.kind for scenario in SCENARIOS] == ["positive"] * 4 + ["negative"] * 15


def test_each_scenario_has_a_twin_of_the_other_kind() -> None:
    kinds = {scenario.name: scenario.kind for scenario in SCENARIOS}

    assert all({scenario.kind, kinds[scenario.twin]} == {"positive", "negative"} for scenario in SCENARIOS)


def test_scenarios_are_run_in_their_own_order_and_a_wrong_name_gets_a_suggestion() -> None:
    assert choose(["gate", "assemble"]) == ("assemble", "gate")
    assert choose([]) == NAMES
    with pytest.raises(BadInput, match="no scenario 'missing_rank'") as refused:
        choose(["missing_rank"])
    assert refused.value.next_step == "did you mean --scenario missing-rank"


def test_every_scenario_passes_with_eight_ranks_on_a_good_identity(good: Identity) -> None:
    findings = probe(good, ranks=8, deadline_s=120.0)

    assert [(result.name, result.ok) for result in findings.scenarios] == [(name, True) for name in NAMES]
    assert {"fabrics", "inference engine", "between nodes"} <= set(findings.not_checked)
    found = {result.name: result.detail for result in findings.scenarios}
    assert "8 ranks joined" in found["assemble"]
    assert found["missing-rank"].endswith("named rank 4")
    assert "rank 7 (pid " in found["killed-rank"]
    assert "was killed by SIGKILL" in found["killed-rank"]
    assert "a foreign identity with the node's own SPIFFE id" in found["stranger"]
    rows = {name: text for name, text in found.items() if name.startswith("wrong-identity-")}
    assert [text.startswith("CA: the installed bundle: ") for text in rows.values()] == [True] * 3 + [
        False
    ] * 3
    assert [text.startswith("CA: a throw-away CA ") for text in rows.values()] == [False] * 3 + [True] * 3
    assert re.search(r"of (0\.900|1\.800|3\.600) s \(three heartbeats\)", found["frozen-rank"])
    assert "was killed by SIGKILL: 7 other ranks noticed" in found["killed-leader"]


def test_two_ranks_are_enough(good: Identity) -> None:
    names = ("assemble", "gate", "killed-rank", "killed-leader", "duplicate-rank", "wrong-world", "stranger")

    assert [result.detail for result in probe(good, *names, ranks=2).scenarios if not result.ok] == []


def test_ranks_with_an_interpreter_each_pass_every_scenario_too(good: Identity) -> None:
    findings = probe(good, ranks=3, spawn="exec", deadline_s=120.0)

    assert [result.detail for result in findings.scenarios if not result.ok] == []


def test_nothing_broken_passes_in_the_harness_that_breaks_things(good: Identity) -> None:
    names = ("assemble", "gate", "killed-rank", "stranger")

    assert all(result.ok for result in broken("nothing", good, *names).values())


def test_ranks_that_are_only_slow_to_come_are_not_taken_for_missing_ones(good: Identity) -> None:
    (result,) = broken("slow", good, "missing-rank", deadline_s=20.0).values()

    assert result.ok, result.detail
    assert result.detail.endswith("named rank 2")


@pytest.mark.parametrize(
    ("fault", "scenario", "found"),
    [
        ("third-never-starts", "assemble", "rank 3 (pid "),
        ("second-hangs", "assemble", "told to stop, ranks [2] still run"),
        ("serves-early", "gate", "the API answered before GO"),
        ("never-serves", "gate", "/health after GO: refused"),
        ("also-listens", "gate", "before GO rank 1 listens on"),
        ("goes-without", "missing-rank", "GO came although rank 2 was never started"),
        ("gives-up-early", "missing-rank", "long before its deadline"),
        ("blames-another", "missing-rank", "rank 2 was never started, and the leader says"),
        ("deaf", "killed-rank", "the leader has not noticed"),
        ("seats-anyone", "stranger", "strangers were counted: TLS without a certificate"),
        ("one-at-a-time", "stranger", "beside strangers rank 2 did not join"),
        ("gives-up-at-once", "late-leader", "gave up: "),
        ("leaves-without-a-word", "clean-shutdown", "told to stop, rank "),
        ("never-pings", "frozen-rank", "rank 3"),
        ("deafened", "killed-leader", "have not noticed"),
        ("seats-twice", "duplicate-rank", "was given a seat"),
        ("asks-nothing", "wrong-world", "was given a seat"),
        ("asks-nothing", "old-run", "was given a seat"),
        ("says-no-values", "wrong-world", "was not told to both"),
        ("refuses-everyone", "old-run", "afterwards the real rank did not join"),
        ("refuses-everyone", "wrong-identity-expired", "afterwards the real rank did not join"),
        ("seats-anyone", "wrong-identity-foreign-ca", "was given a seat"),
        ("seats-anyone", "wrong-identity-cn-only", "was given a seat"),
        ("seats-anyone", "wrong-identity-wrong-node", "was given a seat"),
        ("speaks-plainly", "wrong-identity-plain-tcp", "answered in plain text"),
        ("believes-any-date", "wrong-identity-expired", "was given a seat"),
        ("reads-no-list", "wrong-identity-revoked", "was given a seat"),
        ("any-port", "port-taken", "and rank 0 says: nothing"),
    ],
)
def test_a_broken_rendezvous_fails_the_scenario_that_watches_over_it(
    good: Identity, fault: str, scenario: str, found: str
) -> None:
    (result,) = broken(fault, good, scenario).values()

    assert not result.ok
    assert found in result.detail


@pytest.mark.parametrize(
    ("why", "found"),
    [
        ("expired", "the certificate has expired"),
        ("early", "not valid before"),
        ("two uris", "2 URI names, exactly 1 is expected"),
        ("no uri", "0 URI names"),
        ("other node", "this is node gpu-01"),
        ("foreign", "the chain does not hold"),
        ("other key", "is not the key of"),
        ("revoked", "certificate revoked"),
        ("absent", "cannot be read"),
        ("unreadable bundle", "revocation list"),
    ],
)
def test_an_identity_that_does_not_hold_fails_every_scenario_and_says_why(
    lab: Authority, tmp_path: Path, why: str, found: str
) -> None:
    findings = probe(spoilt(why, tmp_path, lab), "assemble", "missing-rank")

    assert findings.identity.fault
    assert found in findings.identity.fault
    assert [result.ok for result in findings.scenarios] == [False, False]
    assert all(found in result.detail for result in findings.scenarios)


def spoilt(why: str, folder: Path, lab: Authority) -> Identity:
    """An identity with one thing wrong."""
    match why:
        case "expired":
            return identity(folder, by=lab, begins=now() - 2 * _DAY, ends=now() - _DAY)
        case "early":
            return identity(folder, by=lab, begins=now() + _DAY)
        case "two uris":
            return identity(folder, by=lab, uris=(SPIFFE_ID, "spiffe://lab.example/node/gpu-02"))
        case "no uri":
            return identity(folder, by=lab, uris=())
        case "other node":
            return identity(folder, by=lab, uris=("spiffe://lab.example/node/gpu-02",))
        case "foreign":
            return identity(folder, by=lab, trusts=authority("other"))
        case "other key":
            return identity(folder, by=lab, other_key=True)
        case "revoked":
            made = identity(folder, by=lab)
            listed = folder / "crl.pem"
            listed.write_bytes(revocation_list(lab, revoked=leaf_of(made)))
            return made._replace(crl_file=str(listed))
        case "absent":
            made = identity(folder, by=lab)
            Path(made.key_file).unlink()
            return made
        case _:
            made = identity(folder, by=lab)
            Path(made.ca_file).write_text("no PEM\n")
            return made


def test_an_expected_spiffe_id_is_compared(good: Identity) -> None:
    findings = probe(good, "assemble", spiffe_id="spiffe://other.example/node/gpu-01")

    assert not findings.scenarios[0].ok
    assert "spiffe://other.example/node/gpu-01 is expected" in findings.scenarios[0].detail


def test_a_key_that_others_can_read_is_noted(lab: Authority, tmp_path: Path) -> None:
    findings = probe(identity(tmp_path, by=lab, mode=0o644), "assemble")

    assert findings.scenarios[0].ok
    assert findings.identity.key_mode == "0644"
    assert findings.identity.notes == ("the key's mode is 0644, 0600 is expected: others can read it",)


def test_the_facts_of_the_identity_are_those_of_its_certificate(good: Identity) -> None:
    leaf, facts = leaf_of(good), probe(good, "assemble").identity

    assert int(facts.serial or "", 16) == leaf.serial_number
    assert facts.spiffe_id == SPIFFE_ID
    assert facts.not_after == leaf.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert facts.key_mode == "0600"


def test_a_revocation_list_that_revokes_others_is_fine(lab: Authority, tmp_path: Path) -> None:
    made = identity(tmp_path / "mine", by=lab)
    other = identity(tmp_path / "other", by=lab)
    listed = tmp_path / "crl.pem"
    listed.write_bytes(revocation_list(lab, revoked=leaf_of(other)))

    assert probe(made._replace(crl_file=str(listed)), "assemble").scenarios[0].ok


def test_a_scenario_that_has_no_time_left_is_no_pass(good: Identity) -> None:
    findings = probe(good, "assemble", "gate", deadline_s=0.5)

    assert [result.ok for result in findings.scenarios] == [False, False]
    assert "deadline" in findings.scenarios[0].detail
