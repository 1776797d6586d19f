"""What bench/vm/peers.sh printed, as a table: python3 table.py LOG JSON-LINES."""

import collections
import datetime
import json
import statistics
import sys

WIDTH = 5  # seconds that are taken together, so that one good second is not "warm"


def reached(series, level):
    """The first second from which WIDTH seconds have the level, or None."""
    for begin in range(len(series) - WIDTH + 1):
        if statistics.mean(series[begin : begin + WIDTH]) >= level:
            return begin
    return None


def read(path):
    runs, raw = collections.defaultdict(list), {}
    with open(path) as lines:
        for line in lines:
            words = line.split()
            if len(words) == 3 and words[0] == "raw":
                raw[words[1]] = int(float(words[2]))
            elif len(words) == 4 and words[1].isdigit() and words[2].isdigit():
                runs[int(words[1]), words[0]].append(float(words[3]))
    return runs, raw


def shown(second):
    return "never" if second is None else f"{second} s"


def main():
    runs, raw = read(sys.argv[1])
    print(f"  the drives by themselves: SSD {raw.get('ssd')} IOPS, disk {raw.get('hdd')}")
    with open(sys.argv[2], "a") as out:
        for ram in sorted({ram for ram, _ in runs}, reverse=True):
            sides = {side: series for (of, side), series in runs.items() if of == ram}
            warm = {side: statistics.median(series[-max(1, len(series) // 5) :]) for side, series in sides.items()}
            common = 0.9 * min(warm.values())
            print(f"  RAM {ram} MiB        warm IOPS   90 % of it after   {common:.0f} IOPS after   requests in all   first 10 s")
            for side, series in sides.items():
                own = reached(series, 0.9 * warm[side])
                all_of_them = reached(series, common)
                row = dict(side=side, ram_mib=ram, warm_iops=round(warm[side]), own_s=own, common_s=all_of_them)
                row.update(requests=round(sum(series)), seconds=len(series), first=round(statistics.mean(series[:10])))
                times = f"{shown(own):>18} {shown(all_of_them):>16}"
                print(f"    {side:<14} {row['warm_iops']:>9} {times} {row['requests']:>17} {row['first']:>12}")
                row.update(bench="vm-peers", at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), raw=raw)
                out.write(json.dumps(row) + "\n")


main()
