"""What bench/vm/nofscache.sh printed, as a table: python3 nofscache.py LOG JSON-LINES KERNEL."""

import collections
import datetime
import json
import statistics
import sys


def read(path):
    """KiB a second of every run, and the memory limit, by (engine, job)."""
    runs = collections.defaultdict(lambda: {"starved": [], "module": [], "limit": None})
    with open(path) as lines:
        for line in lines:
            words = line.split()
            if len(words) == 8 and words[0] == "run" and words[4] in ("starved", "module"):
                of = runs[words[2], words[3]]
                of[words[4]].append(float(words[6]))
                if words[4] == "starved":
                    of["limit"] = int(words[5])
    return runs


def spread(values):
    return f"{min(values):.0f}-{max(values):.0f}"


def main():
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    print("  engine    job        limit    starved KiB/s (all)            module KiB/s (all)             deviation")
    with open(sys.argv[2], "a") as out:
        for (engine, job), of in read(sys.argv[1]).items():
            if not of["starved"] or not of["module"]:
                continue
            starved, module = statistics.median(of["starved"]), statistics.median(of["module"])
            off = 100 * (module / starved - 1)
            left = f"{starved:.0f} ({spread(of['starved'])})"
            right = f"{module:.0f} ({spread(of['module'])})"
            print(f"  {engine:<9} {job:<9} {of['limit']:>3} MiB    {left:<30} {right:<30} {off:+.1f} %")
            row = dict(bench="nofscache", at=now, kernel=sys.argv[3], engine=engine, job=job, limit_mib=of["limit"], unit="KiB/s")
            row.update(starved=of["starved"], module=of["module"], deviation_percent=round(off, 2), paper_percent=10)
            out.write(json.dumps(row) + "\n")


main()
