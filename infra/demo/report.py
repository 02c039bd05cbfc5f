#!/usr/bin/env python3
"""A Python process that writes a report over and over, at a set share of one core (REPORT_CPU_SHARE, default 0.2)."""

import os
import signal
import sys
import time

ROWS = 400
# CPU seconds of one turn, before it rests.
TURN_SECONDS = 0.02


def parse_rows(turn):
    """Half of the work: text to numbers."""
    lines = [f"{row},{row * 37 % 991},{(row + turn) % 17}" for row in range(ROWS)]
    return [tuple(int(field) for field in line.split(",")) for line in lines]


def sum_by_region(rows):
    """Adds up the amounts of each region."""
    totals = {}
    for _, amount, region in rows:
        totals[region] = totals.get(region, 0) + amount
    return totals


def render_table(totals):
    """Writes the totals as aligned text."""
    return "\n".join(f"{region:>4} {total:>12,}" for region, total in sorted(totals.items()))


def write_report(turn):
    """One report; its length is all that is kept."""
    return len(render_table(sum_by_region(parse_rows(turn))))


def main():
    """Works for a turn, then sleeps until its share is kept."""
    share = float(os.environ.get("REPORT_CPU_SHARE", "0.2"))
    if not 0 < share <= 1:
        sys.exit(f"report.py: REPORT_CPU_SHARE is {share}: it takes a share above 0 and up to 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    turn = 0
    due = time.monotonic()
    while True:
        began = time.thread_time()
        while time.thread_time() - began < TURN_SECONDS:
            write_report(turn)
            turn += 1
        due = max(due + (time.thread_time() - began) / share, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
