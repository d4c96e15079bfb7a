import io
import json

import pytest

from inventory.console import Console, printable
from inventory.errors import BadFile, BadInput, ExitCode, Fault, worst

FINGERPRINT = "fp ab:cd:ef:ab:12 [fe80::1]:22 :smile: [bold]x[/bold]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console(*, terminal: bool = False, **options: object) -> tuple[Console, io.StringIO, io.StringIO]:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    environ = {"TERM": "xterm-256color", "COLUMNS": "40"} if terminal else {}
    return Console(stdout=out, stderr=err, environ=environ, **options), out, err  # type: ignore[arg-type]  # vary


def test_data_goes_to_stdout_and_talk_to_stderr() -> None:
    shown, out, err = console()
    shown.data("datum")
    shown.say("talk")

    assert (out.getvalue(), err.getvalue()) == ("datum\n", "talk\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_fingerprints_addresses_and_brackets_print_as_they_are(*, terminal: bool) -> None:
    shown, out, err = console(terminal=terminal)
    shown.data(FINGERPRINT)
    shown.say(FINGERPRINT)

    assert FINGERPRINT in out.getvalue()
    assert FINGERPRINT in err.getvalue()


def test_what_could_steer_a_terminal_is_made_visible() -> None:
    shown, out, _ = console()
    shown.data("a\x1b[31mred\x07\r\u202eevil\u009b")

    assert out.getvalue() == "a\\x1b[31mred\\x07\\r\\u202eevil\\x9b\n"
    assert printable("umlauts äöü stay") == "umlauts äöü stay"


def test_a_pipe_gets_one_record_a_line_with_whole_values() -> None:
    shown, out, _ = console()
    shown.table(("NAME", "WHY"), [["gpu-01", "x" * 300], ["gpu-02", "tab\there"]])

    assert out.getvalue().splitlines() == ["NAME\tWHY", "gpu-01\t" + "x" * 300, "gpu-02\ttab here"]


def test_tabs_part_the_fields_of_a_line_on_a_pipe() -> None:
    shown, out, _ = console()
    shown.data("state\tin-service")

    assert out.getvalue() == "state\tin-service\n"


def test_json_is_one_document_with_its_schema_and_nothing_else() -> None:
    shown, out, err = console(json_output=True)
    shown.data("no")
    shown.table(("A",), [["no"]])
    shown.warn("but warnings are told")
    shown.document({"ok": True})

    assert json.loads(out.getvalue()) == {"schema": 1, "ok": True}
    assert "but warnings are told" in err.getvalue()


def test_quiet_silences_talk_but_neither_data_nor_warnings_nor_errors() -> None:
    shown, out, err = console(quiet=True)
    shown.say("talk")
    with shown.waiting("something", timeout_s=3) as wait:
        wait.update("still")
    shown.data("datum")
    shown.warn("careful")
    shown.error(BadInput("it failed", why="because", next_step="do this"))

    assert out.getvalue() == "datum\n"
    assert err.getvalue() == "warning: careful\nerror: it failed\n  why: because\n next: do this\n"


def test_detail_comes_with_verbose_only() -> None:
    plain, _, silent = console()
    plain.detail("more")
    wordy, _, told = console(verbose=1)
    wordy.detail("more")

    assert (silent.getvalue(), told.getvalue()) == ("", "more\n")


def test_a_wait_says_at_once_what_for_and_then_a_line_every_ten_seconds() -> None:
    moments = iter([0.0, 5.0, 11.0, 11.0, 11.0])
    shown, _, err = console()
    with shown.waiting("the agent", timeout_s=60, clock=lambda: next(moments)) as wait:
        wait.update("not yet")
        wait.update("nearly")

    first, second = err.getvalue().splitlines()
    assert first == "waiting for the agent (at most 60 s)"
    assert "nearly" in second


def test_colour_needs_a_terminal_and_no_color_forbids_it() -> None:
    _, _, plain = console()
    shown, _, err = console(terminal=True)
    shown.warn("x")
    assert "\x1b[" in err.getvalue()
    shown, _, err = console(terminal=True, colour=False)
    shown.warn("x")
    assert "\x1b[3" not in err.getvalue()
    assert plain.getvalue() == ""


def test_every_fault_of_a_file_is_a_line_of_its_own() -> None:
    shown, _, err = console()
    shown.error(
        BadFile("f.yaml", [Fault("f.yaml:1:1", "a: unknown key"), Fault("f.yaml:2:1", "b: unknown key")])
    )

    assert "f.yaml has 2 faults" in err.getvalue()
    assert "why: f.yaml:1:1: a: unknown key\n  why: f.yaml:2:1: b: unknown key" in err.getvalue()


def test_the_worst_of_several_codes_follows_the_order_1_6_4_3_5() -> None:
    order = [ExitCode(code) for code in (1, 6, 4, 3, 5)]
    for place, code in enumerate(order):
        assert worst([*order[place:], ExitCode.DONE]) is code
    assert worst([ExitCode.DONE, ExitCode.USAGE]) is ExitCode.USAGE
    assert worst([]) is ExitCode.DONE
