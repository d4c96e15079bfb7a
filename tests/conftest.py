"""What holds for every test: a scrubbed environment, skips that are named, no process left behind."""

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.require import ALL_REQUIRED

pytest_plugins = ("tests.fixtures_postgres", "tests.inventory.records")

_SCRUBBED = (
    "MUSTER_",
    "PG",
    "XDG_",
    "NO_COLOR",
    "FORCE_COLOR",
    "SSH_AUTH_SOCK",
    "SSH_ASKPASS",
)  # how the names begin
_TOKEN = "PYTEST_RUN"  # noqa: S105 - the name of a variable that marks every process of this run
_RUN = f"{_TOKEN}={uuid.uuid4()}"
_GRACE_S = 30.0  # a process that was told to end may take this long on a busy machine

if "PYTEST_XDIST_WORKER" in os.environ:  # it ignores SIGINT, and so would every command that a test starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

_skips = pytest.StashKey[Counter[str]]()
_left = pytest.StashKey[list[str]]()

# The same examples each time: what fails in the gate fails for everyone. MUSTER_RANDOM=1 tries others each time.
_patient = hypothesis.settings(
    deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("random", _patient)
hypothesis.settings.register_profile("gate", _patient, derandomize=True)
hypothesis.settings.load_profile("random" if os.environ.get("MUSTER_RANDOM") else "gate")


@pytest.fixture(scope="session", autouse=True)
def _scrubbed_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No setting of the person who runs the tests reaches them, nor their longer-lived fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_SCRUBBED)]:
            patch.delenv(name)
        _live_in(patch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(autouse=True)
def _own_home(_scrubbed_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test has a home and a state directory of its own, inside its tmp_path."""
    _live_in(monkeypatch, tmp_path)


def _live_in(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("HOME", str(folder))
    patch.setenv("XDG_STATE_HOME", str(folder / ".local/state"))


# Skips


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run's processes, before any of them is started."""
    config.stash[_skips] = Counter()
    config.stash[_left] = []
    name, _, value = _RUN.partition("=")
    os.environ[name] = value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a skip under its reason; where all is required, make a failure of it."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        item.config.stash[_skips][reason] += 1
        if ALL_REQUIRED and item.get_closest_marker("opt_in") is None:
            report.outcome = "failed"
            report.longrepr = f"MUSTER_REQUIRE=all, but it was skipped: {reason} ({call.when})"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that is skipped while it is imported."""
    report = yield
    if report.skipped:
        reason = _reason(report)
        collector.config.stash[_skips][reason] += 1
        if ALL_REQUIRED:
            report.outcome = "failed"
            report.longrepr = f"MUSTER_REQUIRE=all, but {collector.nodeid} was skipped: {reason}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    found = report.longrepr  # a list where it came from another worker
    text = str(found[2]) if isinstance(found, tuple | list) else str(found)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """End with what was not run and how to get it, and with what was left behind."""
    told = map(_reason, terminalreporter.stats.get("skipped", ()))  # by workers, which count for themselves
    if skips := config.stash[_skips] or Counter(told):
        terminalreporter.section("not run here")
        for reason, count in sorted(skips.items()):
            terminalreporter.line(f"{count} test{'' if count == 1 else 's'} for want of {reason}")
    if left := config.stash[_left]:
        terminalreporter.section("left behind", red=True)
        for line in left:
            terminalreporter.line(line)


# Processes


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that outlives the tests is a failure; it is ended here."""
    until = time.monotonic() + _GRACE_S
    while (processes := _of_this_run()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid, line in processes.items():
        session.config.stash[_left].append(f"process {pid}: {line}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if processes:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _of_this_run() -> dict[int, str]:
    """Our children, and whoever carries this run's mark in its environment; zombies have ended already."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            environment = (folder / "environ").read_bytes().split(b"\0") if state != "Z" else []
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended meanwhile, or is another person's
            continue
        pid = int(folder.name)
        if (
            state != "Z"
            and pid != os.getpid()
            and (int(parent) == os.getpid() or _RUN.encode() in environment)
        ):
            found[pid] = line
    return found
