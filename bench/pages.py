"""A list of pages and the file they are of: python3 pages.py TRACE TRACE-DIR LIST FILE.

TRACE is `zipf`, or the name of a trace in TRACE-DIR (its README tells the formats); a missing one exits 1. Pages are numbered from 0
in the order in which they first come, so that the file has no holes; each has its number in its first 8 bytes."""

import bisect
import csv
import gzip
import itertools
import os
import random
import sys


def zipf(count=300_000, pages=65_536, theta=1.0):
    weights = list(itertools.accumulate(1 / (rank + 1) ** theta for rank in range(pages)))
    chance = random.Random(7)
    return (bisect.bisect(weights, chance.random() * weights[-1]) for _ in range(count))


def references(path):
    with gzip.open(path, "rt") as lines:
        for line in lines:
            if line.strip() and not line.startswith("*"):
                yield int(line)


def blocks(path):
    with gzip.open(path, "rt", newline="") as rows:
        for row in csv.DictReader(rows):
            begin = int(row["lbn"]) * 512
            end = begin + max(1, int(row["size"]))
            yield from range(begin // 4096, (end + 4095) // 4096)


def main():
    trace, given, list_path, file_path = sys.argv[1:]
    if trace == "zipf":
        requests = zipf()
    elif os.path.exists(path := f"{given}/{trace}.trace.gz"):
        requests = references(path)
    elif os.path.exists(path := f"{given}/{trace}.csv.gz"):
        requests = blocks(path)
    else:
        sys.exit(1)
    numbers = {}
    with open(list_path, "w") as out:
        for page in requests:
            out.write(f"{numbers.setdefault(page, len(numbers))}\n")
    with open(file_path, "wb") as out:
        for number in range(len(numbers)):
            out.write(number.to_bytes(8, "little") * 512)
        out.flush()
        os.fsync(out.fileno())


main()
