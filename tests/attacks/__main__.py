"""python -m tests.attacks: every attack on a node of its own, judged by a bystander's latency and the
broker's memory.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .scene import MIB, Scene, Verdict, attacked
from .scenes import SCENES

#: A short run makes this share of each attack.
SHORT = 0.1
BEGIN, END = "<!-- table of attacks -->", "<!-- end of the table -->"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    names = [scene.name for scene in SCENES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--short", action="store_true", help="a tenth of each attack, for a quick answer")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="allow latencies so many times longer, for a busy machine"
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="tell the longest steps of the event loop, and where they were spent",
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="judge latencies by the CPU time of the loop alone, on a machine that has other things to do",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=1,
        help="latencies have to hold in one run of so many, on a machine that may be held up: that only makes them longer",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page of the docs")
    return parser.parse_args()


def table(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "| attack | p99 ms, before | p99 ms, during | worst ms | login ms | grown MiB | kept MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.scene.title} | {one.calm_p99_ms:.1f} | {_latency(one, one.p99_ms)} | {_latency(one, one.worst_ms)} | "
        f"{one.login_ms:.0f} | {one.grown_bytes // MIB} | {one.kept_bytes // MIB} |"
        for one in verdicts
    ]
    return "\n".join(lines)


def _latency(one: Verdict, ms: float) -> str:
    return "alarm" if one.scene.alarms else f"{ms:.1f}"


def write(page: Path, text: str) -> None:
    """Replace the text between the two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _best(scene: Scene, options: argparse.Namespace) -> tuple[Verdict, bool]:
    """Return the verdict of the last run, and whether the broker failed to withstand the attack."""
    for tries_left in range(options.tries - 1, -1, -1):
        with tempfile.TemporaryDirectory(prefix="mqd-attack-") as directory:
            verdict = attacked(scene, Path(directory), SHORT if options.short else 1.0, watched=options.steps)
        broken, late = verdict.broken(), verdict.late(options.slack, cpu=options.cpu)
        _tell(verdict, broken + late, again=bool(tries_left and late and not broken))
        if broken or not late:
            break
    return verdict, bool(broken or late)


def _tell(verdict: Verdict, failed: Sequence[str], *, again: bool) -> None:
    print(
        f"{'again' if again else 'FAILED' if failed else 'held':6} {verdict.scene.name:24} {verdict.seconds:6.1f} s  p99 {verdict.p99_ms:7.1f} ms  "
        f"loop {verdict.loop_ms:5.1f} ms  worst {verdict.worst_ms:7.1f} ms  login {verdict.login_ms:7.1f} ms  "
        f"grown {verdict.grown_bytes // MIB:5} MiB  kept {verdict.kept_bytes // MIB:4} MiB"
        f"{''.join(f'{chr(10)}       {line}' for line in failed)}",
        flush=True,
    )
    for step in verdict.steps:
        print(step.text(), flush=True)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    verdicts, broken = [], 0
    for scene in SCENES:
        if options.only and scene.name not in options.only:
            continue
        verdict, failed = _best(scene, options)
        verdicts.append(verdict)
        broken += failed
    print(f"\n{table(verdicts)}\n")
    if options.write:
        write(options.write, table(verdicts))
    print(f"{len(verdicts)} attacks, {broken} not withstood")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
