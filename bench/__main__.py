"""`python -m bench`: compare the cost of a streamed event with the floor of its dependencies and with peers."""

import argparse
import datetime
import json
import sys
import time
from typing import Any

from bench.cases import CASES, Case
from bench.environments import PEERS, prepare, versions
from bench.processes import machine
from bench.publishing import publish
from bench.report import judged, markdown, middle, table, write
from bench.runner import Bench


def main() -> None:
    args = _parser().parse_args()
    cases = _selected(args.case)
    begin = time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - begin:4.0f} s] {text}", file=sys.stderr, flush=True)

    wanted = _peers(args, cases)
    peers, left_out = prepare(wanted, report, upgrade=args.upgrade)
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(peers),
        "left_out": left_out,
        "cases": {},
    }
    tables: list[str] = []
    with Bench(peers, report, is_quick=args.quick) as bench:
        for case in cases:
            case_begin = time.monotonic()
            samples, failed = bench.run(case)
            figures = middle(case, samples)
            found["cases"][case.name] = {
                "title": case.title,
                "medians": figures,
                "lowest": middle(case, samples, min),
                "rounds": {way: len(taken) for way, taken in samples.items()},
                "failed": failed,
                "seconds": round(time.monotonic() - case_begin),
            }
            tables.append(table(case, figures, failed))
            if not args.json:
                print(f"\n{tables[-1]}\n", flush=True)
    found["targets"] = judged({name: entry["medians"] for name, entry in found["cases"].items()})
    found["seconds"] = round(time.monotonic() - begin)
    name = _name(args)
    text = markdown(found, tables)
    if args.json:
        print(json.dumps(found))
        return
    print(text[text.index("## Targets") : text.index("## Figures")])
    written = [write(name, found, text), *(publish(found) if name == "bench" else ())]
    print(f"written to {', '.join(map(str, written))}")


def _name(args: argparse.Namespace) -> str:
    """Return the name of the results. Only those of a full run are kept as `bench`."""
    if args.quick:
        return "quick"
    if args.case is None and args.peers is None:
        return "bench"
    return args.case[0] if args.case and len(args.case) == 1 else "some"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--case", nargs="+", metavar="NAME", help=f"only these: {', '.join(c.name for c in CASES)}")
    parser.add_argument("--quick", action="store_true", help="two rounds on small streams; no peers unless named")
    parser.add_argument("--peers", help="only these, comma-separated, or `none`")
    parser.add_argument("--upgrade", action="store_true", help="install the newest versions of the peers again")
    parser.add_argument("--json", action="store_true", help="print the results as JSON and write no file")
    return parser


def _selected(names: list[str] | None) -> list[Case]:
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names or () if name not in known]:
        raise SystemExit(f"unknown case {', '.join(unknown)}; available: {', '.join(known)}")
    return [known[name] for name in names] if names else list(CASES)


def _peers(args: argparse.Namespace, cases: list[Case]) -> list[str]:
    used = {way.peer for case in cases for way in case.ways if way.peer is not None}
    if args.peers is None:
        return [] if args.quick else [name for name in PEERS if name in used]
    named = [] if args.peers == "none" else args.peers.split(",")
    if unknown := [name for name in named if name not in PEERS]:
        raise SystemExit(f"unknown peer {', '.join(unknown)}; available: {', '.join(PEERS)}")
    return [name for name in named if name in used]


if __name__ == "__main__":
    main()
