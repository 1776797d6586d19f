"""A line of bench/replay.c and `hotshelf cache status --json` behind it, as lines like those of bench/foyer/: one for each tier."""

import json
import sys

NAMES = {"ram": "memory", "ssd": "ssd", "below": "below"}


def main():
    first = sys.stdin.readline()
    print(first, end="")
    for tier in json.load(sys.stdin)["tiers"]:
        latency = tier["read_latency"]
        print(
            f"side=hotshelf found={NAMES[tier['name']]} requests={tier['hits']} share={tier['ratio']:.4f} mean_ns=-"
            + "".join(f" {name}_ns={latency[name + '_us'] * 1000:.0f}" for name in ("p50", "p99", "p999"))
        )


main()
