"""A run of all checkers: each by itself, whatever becomes of the others; what it costs; what can be pasted."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from inventory.checking import (
    Asked,
    Disagreement,
    Kind,
    NotChecked,
    Offer,
    Severity,
    chosen,
    discover,
    run_checks,
)
from inventory.errors import BadInput, Damaged, ExitCode, OtherSide, Refused
from tests.inventory.check_kit import asked

WRONG = Kind("s", "a", Severity.WRONG, "it is wrong", "mend {node} --with {thing}")
NOTICE = Kind("s", "b", Severity.NOTICE, "it is late", "mend {node}")
TEXTS = {"why": "because", "next_step": "do it"}


@dataclass
class Scripted:
    """A checker that tells what it was given, then raises."""

    told: tuple[Disagreement | NotChecked, ...] = ()
    error: Exception | None = None
    wanted: bool = False
    source: str = "s"
    kinds: tuple[Kind, ...] = field(default=(WRONG, NOTICE))

    def was_asked(self, asked: Asked) -> bool:
        return self.wanted or asked.site is not None

    def check(self, asked: Asked) -> Iterable[Disagreement | NotChecked]:
        assert list(asked.nodes()) == []
        yield from self.told
        if self.error is not None:
            raise self.error


def offer(checker: Scripted, source: str = "s") -> Offer:
    return Offer(source, lambda: lambda: checker)


def wrong(node: str = "gpu-01") -> Disagreement:
    return WRONG.of(node, found="x", recorded="y", thing=1)


def notice(node: str = "gpu-01") -> Disagreement:
    return NOTICE.of(node, found="x", recorded="y")


def code(*checkers: Scripted, only: tuple[str, ...] = ()) -> ExitCode:
    offers = [offer(checker, f"s{number}") for number, checker in enumerate(checkers)]
    return run_checks(offers, asked([]), only=only).exit_code


def test_a_run_where_all_agree_ends_well() -> None:
    assert code(Scripted(), Scripted()) is ExitCode.DONE


def test_something_wrong_is_a_refusal_and_a_notice_is_not() -> None:
    assert code(Scripted((wrong(),))) is ExitCode.REFUSED
    assert code(Scripted((notice(),))) is ExitCode.DONE


def test_a_source_that_cannot_be_had_costs_only_where_it_was_asked_for() -> None:
    absent = BadInput("no site file", **TEXTS)

    assert code(Scripted(error=absent)) is ExitCode.DONE
    assert code(Scripted(error=absent), only=("s0",)) is ExitCode.USAGE
    assert code(Scripted(error=absent, wanted=True)) is ExitCode.USAGE


@pytest.mark.parametrize("error", [OtherSide("away", **TEXTS), Damaged("broken", **TEXTS)])
def test_a_source_that_is_there_and_fails_always_costs(error: OtherSide | Damaged) -> None:
    assert code(Scripted(error=error)) is error.exit_code


def test_the_worst_of_all_counts() -> None:
    away = Scripted((wrong(),), OtherSide("away", **TEXTS))

    assert code(Scripted((wrong(),)), away) is ExitCode.OTHER_SIDE
    assert code(away, Scripted(error=Damaged("broken", **TEXTS))) is ExitCode.DAMAGED


def test_a_checker_that_fails_keeps_none_of_the_others_and_what_it_found_stays() -> None:
    bug = ZeroDivisionError()
    offers = [offer(Scripted((wrong("b"),), bug), "first"), offer(Scripted((wrong("a"),)), "second")]

    outcome = run_checks(offers, asked([]))

    assert [each.node for each in outcome.disagreements] == ["a", "b"]
    assert outcome.checked == ["second"]
    assert [each.source for each in outcome.not_checked] == ["first"]
    assert outcome.bug is bug
    assert outcome.exit_code is ExitCode.BUG


def test_a_checker_whose_libraries_are_absent_is_told_with_the_line_that_brings_them() -> None:
    def load() -> object:
        raise ModuleNotFoundError("No module named 'cryptography'", name="cryptography")

    outcome = run_checks([Offer("ledger", load), offer(Scripted())], asked([]))

    (untold,) = outcome.not_checked
    assert "cryptography is not installed" in untold.why
    assert "passmuster[" in untold.how
    assert outcome.exit_code is ExitCode.DONE
    assert run_checks([Offer("ledger", load)], asked([]), only=["ledger"]).exit_code is ExitCode.USAGE


def test_a_node_that_is_not_checked_says_so_and_costs_what_it_says() -> None:
    left = NotChecked.of(Refused("not this one", **TEXTS), "s", "gpu-01")

    outcome = run_checks([offer(Scripted((left,)))], asked([]))

    assert outcome.to_json() == {
        "ok": False,
        "checked": ["s"],
        "disagreements": [],
        "not_checked": [
            {"source": "s", "node": "gpu-01", "why": "not this one: because", "how": "do it", "exit_code": 3}
        ],
    }


def test_what_others_say_of_a_machine_is_quoted_in_what_is_to_be_pasted() -> None:
    evil = "x; reboot #"

    mend = WRONG.of(evil, found="", recorded="", thing="$(reboot now)").mend

    assert shlex.split(mend) == ["mend", evil, "--with", "$(reboot now)"]


def test_the_floors_above_offer_their_sources() -> None:
    offers = discover()

    assert [each.source for each in offers] == ["record", "ledger", "nodes", "proxmox"]
    for each in offers:
        checker = each.checker()
        assert checker.source == each.source
        assert {kind.source for kind in checker.kinds} == {each.source}


def test_kinds_are_told_apart_by_their_names() -> None:
    names = [kind.about for each in discover() for kind in each.checker().kinds]

    assert sorted(names) == sorted(set(names))


def test_a_source_that_nobody_offers_is_refused_and_those_that_there_are_told() -> None:
    with pytest.raises(BadInput) as caught:
        chosen(discover(), ["proxmox", "prxmox"])

    assert "prxmox" in caught.value.why
    assert "record, ledger, nodes, proxmox" in caught.value.why


def test_without_a_choice_every_source_is_asked() -> None:
    offers = discover()

    assert chosen(offers, []) == offers
    assert [each.source for each in chosen(offers, ["nodes"])] == ["nodes"]
