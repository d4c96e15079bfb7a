import re
import subprocess
from datetime import timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from inventory.console import printable
from inventory.export.prometheus import write
from inventory.model import Node, State
from tests.inventory.exports import NOW, node, text_of
from tests.require import need_command

RULES = Path(__file__).parents[2] / "examples/prometheus/muster.rules.yaml"
HOSTILE = 'a"} 1\nmuster_nodes{state="in-service"} 99\n\\" \\n \r\x00 \u2028 ü'
UNIX = 1796040000


def metrics(*nodes: Node) -> str:
    return text_of(lambda out: write(nodes, out, now=NOW))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Each metric's samples as Prometheus' own Python library reads them; a metric that comes twice is a fault."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {family.name: [(sample.labels, sample.value) for sample in family.samples] for family in families}


def promtool(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    need_command("promtool")
    return subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, text=True, check=False, timeout=600
    )


def test_every_state_is_counted_and_one_without_nodes_is_zero() -> None:
    found = samples(metrics(node("gpu-01"), node("gpu-02"), node("gpu-03", State.VERIFY_FAILED)))

    counts = {labels["state"]: value for labels, value in found["muster_nodes"]}
    assert counts == {
        **{str(state): 0 for state in State},
        "in-service": 2,
        "verify-failed": 1,
    }


def test_a_node_tells_its_state_whose_move_it_is_and_its_two_times() -> None:
    known = node(not_after=NOW + timedelta(days=30), verified_at=NOW - timedelta(hours=1))
    found = samples(metrics(known, node("gpu-02", State.AWAITING_IDENTITY, address=None)))

    assert found["muster_node_info"] == [
        (
            {
                "node": "gpu-01",
                "site": "lab.example",
                "profile": "h100x8",
                "proxmox_node": "pve1",
                "address": "10.0.0.7",
            },
            1,
        ),
        (
            {
                "node": "gpu-02",
                "site": "lab.example",
                "profile": "h100x8",
                "proxmox_node": "pve1",
                "address": "",
            },
            1,
        ),
    ]
    assert found["muster_node_state_info"] == [
        ({"node": "gpu-01", "state": "in-service", "next": "nobody"}, 1),
        ({"node": "gpu-02", "state": "awaiting-identity", "next": "security"}, 1),
    ]
    assert found["muster_node_certificate_not_after_timestamp_seconds"] == [
        ({"node": "gpu-01"}, UNIX + 30 * 86400)
    ]
    assert found["muster_node_last_verified_timestamp_seconds"] == [({"node": "gpu-01"}, UNIX - 3600)]
    assert found["muster_record_export_timestamp_seconds"] == [({}, UNIX)]


def test_promtool_has_no_word_against_it() -> None:
    full = node(not_after=NOW, verified_at=NOW)
    for text in (metrics(), metrics(full, node("gpu-02", site=HOSTILE, profile=HOSTILE))):
        done = promtool("check", "metrics", given=text)

        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_does_refuse_what_is_wrong() -> None:
    assert promtool("check", "metrics", given=metrics(node()).replace('"h100x8"', '"h"x"')).returncode != 0


@given(st.text(max_size=30), st.sampled_from([HOSTILE, "\\", '"', "\\n", "x"]))
def test_a_text_of_the_record_stays_within_its_label(site: str, profile: str) -> None:
    found = samples(metrics(node(site=site, profile=profile)))

    ((labels, _),) = found["muster_node_info"]
    assert (labels["site"], labels["profile"]) == (printable(site), printable(profile))
    assert {told["state"]: value for told, value in found["muster_nodes"]}["in-service"] == 1


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", str(RULES))

    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_the_rules_alert_on_what_they_say_and_on_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text((Path(__file__).parent / "export_rules_test.yaml").read_text())
    (tmp_path / RULES.name).write_text(RULES.read_text())
    done = promtool("test", "rules", str(tmp_path / "test.yaml"))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_name_metrics_that_are_exported() -> None:
    exported = set(re.findall(r"(?m)^# TYPE (\S+) gauge$", metrics()))
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    named = set(re.findall(r"\bmuster_[a-z_]+(?::[a-z_:]+)?\b", RULES.read_text()))

    assert named - exported - recorded == set()
