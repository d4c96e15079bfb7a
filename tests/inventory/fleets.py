"""A fleet for the report's tests: nodes in every state, with roads of days, real forms of reports, and two outliers."""

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from inventory.lifecycle import whose_move
from inventory.model import Address, Event, Fabric, KeptReceipt, KeptReport, Node, State, Summary
from inventory.report.facts import Row, Whole, last_run

from . import kit

NOW = kit.NOW
S = State
WAY_IN = (S.PLANNED, S.PROVISIONING, S.AWAITING_IDENTITY, S.ONBOARDING, S.AWAITING_VERIFICATION, S.VERIFYING)
_WAY_OUT = (S.DECOMMISSIONING, S.AWAITING_RETIREMENT, S.RETIRING)
ROADS: dict[State, tuple[State, ...]] = {
    S.PLANNED: WAY_IN[:1],
    S.PROVISIONING: WAY_IN[:2],
    S.PROVISION_FAILED: (*WAY_IN[:2], S.PROVISION_FAILED, S.PROVISIONING, S.PROVISION_FAILED),
    S.AWAITING_IDENTITY: WAY_IN[:3],
    S.ONBOARDING: WAY_IN[:4],
    S.ONBOARD_FAILED: (*WAY_IN[:4], S.ONBOARD_FAILED),
    S.AWAITING_VERIFICATION: WAY_IN[:5],
    S.VERIFYING: WAY_IN,
    S.VERIFY_FAILED: (*WAY_IN, S.IN_SERVICE, S.VERIFY_FAILED),
    S.IN_SERVICE: (*WAY_IN, S.IN_SERVICE),
    S.DECOMMISSIONING: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT[:1]),
    S.DECOMMISSION_FAILED: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT[:1], S.DECOMMISSION_FAILED),
    S.AWAITING_RETIREMENT: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT[:2]),
    S.RETIRING: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT),
    S.RETIRE_FAILED: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT, S.RETIRE_FAILED),
    S.RETIRED: (*WAY_IN, S.IN_SERVICE, *_WAY_OUT, S.RETIRED),
}
REASONS = {
    S.PROVISION_FAILED: "the Proxmox task ended with: storage 'local-lvm' is full (4.1 GiB free, 32 GiB wanted)",
    S.ONBOARD_FAILED: "the machine's clock is 94 s ahead; policy allows 5 s",
    S.VERIFY_FAILED: "killed-leader: rank 5 noticed after 412 ms; fabric ib0 MTU is 2044, 4092 wanted",
    S.DECOMMISSION_FAILED: "the node did not answer within 20 s",
    S.RETIRE_FAILED: "VM 5031 is protected",
}
_WHY = {
    S.PLANNED: "provision-node --profile h100x8",
    S.PROVISIONING: "the plan was confirmed",
    S.AWAITING_IDENTITY: "a ticket was signed",
    S.ONBOARDING: "the ticket of mira@infra was believed, and the name typed",
    S.AWAITING_VERIFICATION: "the identity is installed, receipt signed",
    S.VERIFYING: "verify-node, started by onboard-node",
    S.IN_SERVICE: "8 ranks assembled on loopback, 19 of 19 scenarios as they must",
    S.DECOMMISSIONING: "onboard-node --decommission: the rack moves",
    S.AWAITING_RETIREMENT: "certificate revoked, identity wiped",
    S.RETIRING: "the receipt was taken",
    S.RETIRED: "VM destroyed",
}
_DRILLS = (
    *("assemble", "late-leader", "gate", "clean-shutdown", "missing-rank", "killed-rank", "frozen-rank"),
    *("killed-leader", "duplicate-rank", "wrong-world", "old-run", "stranger", "wrong-identity-foreign-ca"),
    *("wrong-identity-cn-only", "wrong-identity-expired", "wrong-identity-revoked", "port-taken"),
)
_TAKES = dict(zip(_DRILLS, (0.9, 1.6, 0.95, 0.8, 2.1, 0.7, 1.9, 0.72, *(1.0,) * 9), strict=True))


def report(name: str, at: datetime, *, passed: bool = True, slow: float = 1.0, ranks: int = 8) -> KeptReport:
    """A verification in the form of `verify.report.NodeReport.to_json`; `slow` stretches two of its drills."""
    draw = random.Random(f"{name} {at}")  # noqa: S311 - no secret: the same fleet each time
    took = {
        drill: usual * draw.uniform(0.94, 1.08) * (slow if drill in ("killed-leader", "late-leader") else 1)
        for drill, usual in _TAKES.items()
    }
    starts = [draw.uniform(0, 60) for _ in range(ranks)]
    joins = [start + draw.uniform(120, 260) for start in starts]
    go = max(joins) + 4
    document: dict[str, Any] = {
        "name": name,
        "ok": passed,
        "outcome": "passed" if passed else "failed",
        "seconds": sum(took.values()) + 1.2,
        "probe_sha256": "5be3" * 16,
        "identity": {"spiffe_id": f"spiffe://example/node/{name}", "serial": "4f1c", "key_owner": "muster"},
        "verification": {
            "ranks": ranks,
            "phases": [
                {"name": "start", "ms": max(starts), "p50_ms": 30.0, "p99_ms": 59.0},
                {"name": "last_join", "ms": max(joins), "p50_ms": 200.0, "p99_ms": 290.0},
                {"name": "go", "ms": go, "p50_ms": None, "p99_ms": None},
                {"name": "teardown", "ms": draw.uniform(40, 48), "p50_ms": 20.0, "p99_ms": 44.0},
            ],
            "time_line": [
                {
                    "rank": rank,
                    "start_ms": start,
                    "joined_ms": join,
                    "go_ms": go + rank / 3,
                    "end_ms": go + 210,
                }
                for rank, (start, join) in enumerate(zip(starts, joins, strict=True))
            ],
            "checks": [
                {"name": each, "verdict": "pass", "expected": "as installed", "found": "so", "next": None}
                for each in ("agent-config", "identity", "expiry", "clock", "fabric ib0 link")
            ]
            + [
                {"name": "open-files", "verdict": "warning", "found": "1024", "next": "LimitNOFILE=65536"},
                {
                    "name": "fabric ib0 MTU",
                    "verdict": "pass" if passed else "critical",
                    "found": "4092" if passed else "2044, 4092 wanted",
                    "next": None if passed else "set the MTU in agent.yaml or on the switch",
                },
            ],
            "not_checked": ["between nodes", "GPU kernels"],
            "scenarios": [
                {
                    "name": drill,
                    "kind": "positive" if number < 4 else "negative",
                    "ok": passed or drill != "killed-leader",
                    "seconds": took[drill],
                    "expected": "every other rank notices within 100 ms",
                    "detail": "all noticed"
                    if passed or drill != "killed-leader"
                    else "rank 5 noticed after 412 ms",
                }
                for number, drill in enumerate(_DRILLS)
            ],
        },
    }
    if not passed:
        document["error"] = {"what": f"{name} did not pass", "why": REASONS[S.VERIFY_FAILED], "next": "look"}
    return KeptReport(name, at, passed, document)


def events(state: State, *, entered: datetime, seed: str) -> tuple[Event, ...]:
    """The road to a state that was entered then."""
    draw = random.Random(seed)  # noqa: S311 - no secret: the same fleet each time
    road = ROADS[state]
    moments = [entered]
    for before in reversed(road[:-1]):
        quick = before in (
            S.PLANNED,
            S.PROVISIONING,
            S.ONBOARDING,
            S.VERIFYING,
            S.DECOMMISSIONING,
            S.RETIRING,
        )
        hours = draw.uniform(0.02, 0.2) if quick else draw.uniform(5, 200)
        moments.insert(0, moments[0] - timedelta(hours=hours))
    told = []
    for number, (at, after) in enumerate(zip(moments, road, strict=True)):
        by = (
            "infra" if whose_move(after) == "infra" or after in (S.AWAITING_IDENTITY, S.RETIRED) else "holder"
        )
        actor, host = ("mira", "ops-1") if by == "infra" else ("jonas", "ca-host")
        why = _WHY.get(after) or REASONS[after]
        told.append(
            Event(at, actor, host, road[number - 1] if number else None, after, why, by, f"{actor}_db")
        )
    if state is S.IN_SERVICE:
        told.append(
            Event(
                NOW - timedelta(hours=31),
                "jonas",
                "ca-host",
                state,
                state,
                "renewed: certificate 4f1d",
                "holder",
            )
        )
    return tuple(told)


def whole(number: int, state: State, *, waited: timedelta, left: timedelta | None, **of_report: Any) -> Whole:
    """One node, gpu-NN."""
    name = f"gpu-{number:02}"
    identified = left is not None
    node = Node(
        name=name,
        state=state,
        uuid=f"0e1a2b3c-0000-4000-8000-{number:012}",
        vmid=5000 + number,
        proxmox_node=f"pve{number % 4 + 1}",
        site="pve.example",
        profile="h100x8",
        spec_hash="00ff",
        address=Address(f"10.20.0.{number}", 24, "static") if state is not S.PLANNED else None,
        user="muster",
        macs=(f"bc:24:11:00:00:{number:02x}",),
        host_keys=(kit.KEY,) if state not in (S.PLANNED, S.PROVISIONING, S.PROVISION_FAILED) else (),
        machine_id="ab" * 16,
        fabrics=(Fabric("ib0", "ibp1s0", None, 4092, 400.0, f"10.30.0.{number}/24"),),
        reason=REASONS.get(state),
        not_after=None if left is None else NOW + left,
    )
    receipts: tuple[KeptReceipt, ...] = ()
    if left is not None:
        receipt = replace(
            kit.receipt(),
            node=name,
            vm_uuid=node.uuid or "",
            spiffe_id=f"spiffe://example/node/{name}",
            not_after=NOW + left,
            made_at=NOW + left - timedelta(days=14),
            serial=f"{0x4F1C00 + number:06x}",
            ca_fingerprint="c0ffee12" * 8,
        )
        receipts = (KeptReceipt(name, receipt.made_at, node.uuid, _unsigned(receipt)),)
    run = NOW - timedelta(hours=2 + number * 3.7 % 60)
    reports: tuple[KeptReport, ...] = ()
    if identified and state not in (S.ONBOARDING, S.AWAITING_VERIFICATION, S.VERIFYING):
        passed = state is not S.VERIFY_FAILED
        reports = tuple(
            report(name, run - timedelta(days=days), passed=passed or days > 0, **of_report)
            for days in (0, 1, 2)
        )
    walked = events(state, entered=NOW - waited, seed=name)
    return Whole(node, walked, reports, receipts)


def _unsigned(receipt: Any) -> str:
    from inventory import canonical, ticket

    return canonical.dumps(ticket._receipt.dump_python(receipt, mode="json")) + "\n"  # noqa: SLF001 - no key needed


def fleet() -> tuple[Whole, ...]:
    """44 nodes: most serve, some in every other state; gpu-07 and gpu-19 are slow, gpu-36 failed its verification."""
    draw = random.Random(7)  # noqa: S311 - no secret: the same fleet each time
    states = [S.IN_SERVICE] * 24 + [
        *(S.PLANNED, S.PROVISIONING, S.PROVISION_FAILED, *[S.AWAITING_IDENTITY] * 4, S.ONBOARDING),
        *(S.ONBOARD_FAILED, S.AWAITING_VERIFICATION, S.VERIFYING, S.VERIFY_FAILED, S.VERIFY_FAILED),
        *(S.DECOMMISSIONING, S.DECOMMISSION_FAILED, S.AWAITING_RETIREMENT, S.RETIRING, S.RETIRE_FAILED),
        *(S.RETIRED, S.RETIRED),
    ]
    certified = (S.IN_SERVICE, S.AWAITING_VERIFICATION, S.VERIFYING, S.VERIFY_FAILED, S.DECOMMISSIONING)
    found = []
    for number, state in enumerate(states, 1):
        days = 200.0 if state is S.IN_SERVICE else 6.5 if state is S.AWAITING_IDENTITY else 3.0
        waited = timedelta(days=draw.uniform(0.02, days))
        left = timedelta(days=draw.triangular(2.5, 14, 11)) if state in certified else None
        if number in (3, 21):
            left = timedelta(days=-1.3 if number == 3 else 41)
        slow = {7: 3.4, 19: 1.9}.get(number, 1.0)
        found.append(whole(number, state, waited=waited, left=left, slow=slow))
    return tuple(found)


def row(of: Whole) -> Row:
    """As the record's readers would make it of the same facts."""
    node = of.node
    passes = [kept.at for kept in of.reports if kept.passed]
    since = [each.at for each in of.events if each.before is not each.after]
    return Row(
        Summary(
            name=node.name,
            state=node.state,
            uuid=node.uuid,
            vmid=node.vmid,
            proxmox_node=node.proxmox_node,
            address=None if node.address is None else node.address.ip,
            profile=node.profile,
            reason=node.reason,
            not_after=node.not_after,
            verified_at=max(passes, default=None),
        ),
        since[-1] if since else None,
        last_run(of.reports[0]) if of.reports else None,
    )
