#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws records of bench/peers/compare.py: for every row our share of the machine's limit, the peer's, and the limit.

  bench/peers/plot.py RECORDS.jsonl... [--out bench/results/cpu.svg]

The limit is the read sweep for one row of inputs and the arithmetic peak for more, measured in the same pairs. A row that was
measured more than once shows the newest record. Peers whose weights are wider or narrower than ours reach a share of their own
bytes; the number at the right is the ratio of weights (operations) a second, with its 95 % interval.
"""
import argparse
import json
from html import escape

OURS, PEER = "#1f77b4", "#c7c7c7"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+")
    parser.add_argument("--out", default="bench/results/cpu.svg")
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.records:
        with open(name) as lines:
            for line in lines:
                record = json.loads(line)
                # Records may come from machines of several kinds: they are rows of their own.
                key = (record["host"]["cpu_model"], record["host"]["isa"], record["shape"], record["batch"], record["threads"],
                       record["paired_ref"]["name"])
                if key not in rows or record["date_utc"] >= rows[key]["date_utc"]:
                    rows[key] = record
    order = sorted(rows.items(), key=lambda item: (item[0][0], item[0][1], item[1]["shape"].split("/")[0], item[0][5].split()[0],
                                                   item[0][2], item[0][3], item[0][4]))
    left, width, right, step = 430, 420, 190, 30
    out = []

    def text(x, y, value, anchor="start", weight="normal"):
        out.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{escape(value)}</text>')

    shares = []
    for _, r in order:
        which = "ratio_peak" if r["batch"] > 1 else "ratio_read"
        shares.append((r["counters"][which], r["counters"]["peer_" + which]))
    top = max([1.1] + [min(2.0, max(s)) for s in shares])
    scale = width / top
    y = 50
    machine = None
    for ((cpu, isa, *_), r), (ours, peer) in zip(order, shares):
        if (cpu, isa) != machine:
            machine = (cpu, isa)
            y += 14
            text(10, y + 8, f"{cpu}, {isa}", weight="bold")
            y += 18
        label = f"{r['shape']} M={r['batch']}, {r['threads']} thread{'s' if r['threads'] > 1 else ''}"
        text(left - 8, y + 11, label, "end")
        text(left - 8, y + 23, r["paired_ref"]["name"], "end")
        for share, color, dy in ((ours, OURS, 2), (peer, PEER, 14)):
            out.append(f'<rect x="{left}" y="{y + dy}" width="{min(share, top) * scale:.1f}" height="10" fill="{color}"/>')
        low, high = r["paired_ref"]["ratio_ci95"]
        text(left + width + 8, y + 17, f"{r['paired_ref']['ratio_median']:.2f}x [{low:.2f}, {high:.2f}]{'' if r['valid'] else ' *'}")
        y += step
    text(10, 20, "Share of the machine's limit (read sweep for M = 1, arithmetic peak for more)", weight="bold")
    for x, color, name in ((10, OURS, "DeepInfer"), (110, PEER, "the other library"), ):
        out.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{color}"/>')
        text(x + 18, 41, name)
    text(left + width + 8, 41, "ratio (* busy machine)")
    for share in (0.25, 0.5, 0.75, 1.0):
        x = left + share * scale
        out.append(f'<line x1="{x:.1f}" y1="46" x2="{x:.1f}" y2="{y}" stroke="{"#d62728" if share == 1 else "#e0e0e0"}"/>')
        text(x, 41, "limit" if share == 1 else f"{share:.2f}", "middle")
    height = y + 14
    with open(arguments.out, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + right}" height="{height}" font-family="sans-serif" '
                   f'font-size="11"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
