"""Runs named rows and prints their ratios: `python -m bench [ROW...] [--rounds N] [--json]`."""

import argparse
import json
import platform
import sys
from collections.abc import Callable

from bench import api_requests, enrolment, fleet, issuing, ledger, record, rendezvous, start_up
from bench.row import Contest, Result, measure

ROWS: dict[str, Callable[[], list[Contest]]] = {
    "issue": issuing.contests,
    "ledger": ledger.contests,
    "record": record.contests,
    "start-up": start_up.contests,
    "requests": api_requests.contests,
    "fleet": fleet.contests,
    "rendezvous": rendezvous.contests,
    "enrolment": enrolment.contests,
}


def main() -> int:
    """Measure the rows that were named, all of them where none was."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"one of {', '.join(ROWS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=11, help="measured rounds (default: 11)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    wanted = parser.parse_args()
    if unknown := [row for row in wanted.rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if wanted.rounds < 1:
        parser.error("--rounds must be at least 1")
    results: dict[str, list[Result]] = {}
    for row in wanted.rows or ROWS:
        sys.stderr.write(f"bench: {row}, {wanted.rounds} rounds\n")
        results[row] = measure(ROWS[row](), rounds=wanted.rounds)
    if wanted.json:
        document = {
            "schema": 1,
            "python": platform.python_version(),
            "rows": {row: [result.to_json() for result in found] for row, found in results.items()},
        }
        print(json.dumps(document))
    else:
        for row, found in results.items():
            print_table(row, found)
    return 0


def print_table(row: str, results: list[Result]) -> None:
    """Ratios first: they travel from machine to machine, the medians do not."""
    width = max(len(result.name) for result in results)
    print(f"{row}: ratio of medians (middle half), against what, medians of {results[0].rounds} rounds")
    for result in results:
        low, high = result.ratio_quartiles
        print(
            f"  {result.name:<{width}}  {result.ratio:5.2f} ({low:.2f}-{high:.2f})  against {result.against}"
            f"  ({result.ours:.3f} : {result.floor:.3f} {result.unit})"
        )


if __name__ == "__main__":
    sys.exit(main())
