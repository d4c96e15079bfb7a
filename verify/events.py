"""What the probe may say, checked: everything that comes from a node is bounded and untrusted."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MAX_LINE = 65536
_Text = Annotated[str, Field(max_length=2000)]
_Short = Annotated[str, Field(max_length=200)]
_Milliseconds = Annotated[float, Field(ge=0, le=86400000, allow_inf_nan=False)]
_Hex = Annotated[str, Field(max_length=128, pattern=r"^[0-9a-f]+$")]


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Began(_Event):
    """The probe runs: as whom, under which Python."""

    event: Literal["probe"]
    schema_: Literal[1] = Field(alias="schema")
    pid: int
    user: _Short
    python: _Short
    openssl: _Short


class IdentityFacts(_Event):
    """The node's identity as the node sees it; `fault` is why nothing can be run over it."""

    event: Literal["identity"]
    fault: _Text | None
    notes: Annotated[tuple[_Text, ...], Field(max_length=20, strict=False)]
    node_clock: _Short
    key_mode: _Short | None = None
    key_owner: _Short | None = None
    ca_fingerprints: Annotated[tuple[_Hex, ...], Field(max_length=20, strict=False)] = ()
    fingerprint_sha256: _Hex | None = None
    serial: _Hex | None = None
    not_before: _Short | None = None
    not_after: _Short | None = None
    seconds_left: int | None = None
    spiffe_id: _Text | None = None


class Started(_Event):
    """A scenario begins."""

    event: Literal["scenario-started"]
    name: _Short


class ScenarioResult(_Event):
    """A scenario's verdict: `detail` is what was found, `expected` what had to be."""

    event: Literal["scenario"]
    name: _Short
    kind: Literal["positive", "negative"]
    ok: bool
    seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
    expected: _Text
    detail: _Text


class Check(_Event):
    """One fact of the node, judged; `next` is what to do about it."""

    event: Literal["check"]
    name: _Short
    verdict: Literal["pass", "info", "warning", "critical", "unknown"]
    expected: _Text
    found: _Text
    next: _Text | None
    why: _Text | None = None
    essential: bool = False


class RankTimes(BaseModel):
    """One rank of the first scenario that assembles: milliseconds since that began; None where it came to nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    rank: Annotated[int, Field(ge=0, le=100_000)]
    start_ms: _Milliseconds | None
    joined_ms: _Milliseconds | None
    go_ms: _Milliseconds | None
    end_ms: _Milliseconds | None


class TimeLine(_Event):
    """What became of each rank, and when."""

    event: Literal["time-line"]
    ranks: Annotated[tuple[RankTimes, ...], Field(max_length=512, strict=False)]


class Phase(BaseModel):
    """How long a part of the run took, or how far it was by then."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: _Short
    ms: _Milliseconds


class Phases(_Event):
    """The run's phases, in order."""

    event: Literal["phases"]
    items: Annotated[tuple[Phase, ...], Field(max_length=50, strict=False)]


class NotChecked(_Event):
    """What this verification says nothing about."""

    event: Literal["not-checked"]
    items: Annotated[tuple[_Short, ...], Field(max_length=50, strict=False)]


class Done(_Event):
    """Everything that was asked has been run."""

    event: Literal["done"]
    ok: bool
    seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class Broken(_Event):
    """The probe itself failed."""

    event: Literal["broken"]
    text: _Text


Event = (
    Began | IdentityFacts | Check | Started | ScenarioResult | Phases | TimeLine | NotChecked | Done | Broken
)
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def read(line: bytes) -> Event:
    """One line of the probe's stream.

    Raises:
        ValueError: it is no event.
    """
    if len(line) > MAX_LINE:
        raise ValueError(f"a line of {len(line)} bytes")
    try:
        return _EVENT.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place or 'the line'}: {first['msg']}") from None
