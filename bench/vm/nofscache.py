"""What bench/vm/nofscache.sh printed, as a table and a drawing: python3 nofscache.py LOG JSON-LINES KERNEL SVG."""

import collections
import datetime
import json
import statistics
import sys

# The words of a line after `run N ENGINE JOB SIDE`.
FIELDS = ("limit", "rate", "read", "written", "drive_read", "drive_written", "reads", "writes")
PAPER_PERCENT = 10


def parse(path):
    """The runs, by (engine, job) and side; and the lines `control SIDE KIB READ-KIB`."""
    runs, controls = collections.defaultdict(lambda: {"starved": [], "module": []}), []
    with open(path) as lines:
        for line in lines:
            words = line.split()
            if len(words) == 5 + len(FIELDS) and words[0] == "run":
                values = (0 if word == "-" else float(word) for word in words[5:])
                runs[words[2], words[3]][words[4]].append(dict(zip(FIELDS, values)))
            elif len(words) == 4 and words[0] == "control":
                controls.append((words[1], int(words[2]), int(words[3])))
    return {key: of for key, of in runs.items() if of["starved"] and of["module"]}, controls


def median(runs, field):
    return statistics.median(run[field] for run in runs)


def from_memory(runs):
    """Of what was read, the per cent that the drive was not asked for."""
    read = sum(run["read"] for run in runs)
    return max(0.0, 100 * (1 - sum(run["drive_read"] for run in runs) / read)) if read else None


def row(engine, job, of):
    """The two of a run have one seed and are measured at the same time, runs have different seeds: so runs are compared one by one."""
    sides = {}
    for side, runs in of.items():
        sides[side] = {field: median(runs, field) for field in FIELDS[1:]}
        sides[side].update(all=[run["rate"] for run in runs], from_memory_percent=from_memory(runs))
    off = [100 * (module["rate"] / starved["rate"] - 1) for starved, module in zip(of["starved"], of["module"])]
    return dict(engine=engine, job=job, limit_mib=max(run["limit"] for run in of["starved"]), unit="KiB/s", paper_percent=PAPER_PERCENT,
                deviation_percent=statistics.median(off), deviations_of_runs=off,
                deviation_of_medians_percent=100 * (sides["module"]["rate"] / sides["starved"]["rate"] - 1), **sides)


def spread(side):
    return f"{side['rate']:.0f} ({min(side['all']):.0f}-{max(side['all']):.0f})"


def asked(side):
    memory = "" if side["from_memory_percent"] is None else f" {side['from_memory_percent']:.1f} %"
    return f"{side['reads']:.0f}/{side['writes']:.0f}{memory}"


def show(rows):
    print(f"  {'engine':<9}{'job':<10}{'limit':>5}  {'starved KiB/s (all)':<21}{'module KiB/s (all)':<21}"
          f"{'deviation':>9}  {'(of each run)':<16} {'of medians':>10}  {'drive reads/writes, read from memory: starved':<46} module")
    for each in rows:
        starved, module, off = each["starved"], each["module"], each["deviations_of_runs"]
        print(f"  {each['engine']:<9}{each['job']:<10}{each['limit_mib']:>5.0f}  {spread(starved):<21}{spread(module):<21}"
              f"{each['deviation_percent']:>+8.1f}%  {f'({min(off):+.1f} to {max(off):+.1f})':<16} "
              f"{each['deviation_of_medians_percent']:>+9.1f}%  {asked(starved):<46} {asked(module)}")


def draw(rows, path):
    """Bars of the deviations, with the paper's bounds."""
    step, middle = 52, 150
    most = max(PAPER_PERCENT * 2, *(abs(each["deviation_percent"]) for each in rows))
    scale = 120 / most
    width = 60 + step * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="330" font-family="sans-serif" font-size="10">',
           f'<rect width="{width}" height="330" fill="white"/>',
           '<text x="8" y="14">module beside starved memory, deviation in per cent; dashed: the paper</text>']
    for percent in (PAPER_PERCENT, 0, -PAPER_PERCENT):
        y, dashes = middle - percent * scale, '' if percent == 0 else ' stroke-dasharray="4 3"'
        out.append(f'<line x1="40" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#666"{dashes}/>')
        out.append(f'<text x="8" y="{y + 3:.1f}">{percent:+d}</text>'.replace("+0<", "0<"))
    for at, each in enumerate(rows):
        x, off = 48 + at * step, each["deviation_percent"]
        top, colour = middle - max(off, 0) * scale, "#3b6ea5" if each["engine"] == "sync" else "#c77d2e"
        out.append(f'<rect x="{x}" y="{top:.1f}" width="30" height="{max(abs(off) * scale, 0.5):.1f}" fill="{colour}"/>')
        ends = [middle - value * scale for value in (min(each["deviations_of_runs"]), max(each["deviations_of_runs"]))]
        out.append(f'<line x1="{x + 15}" x2="{x + 15}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" stroke="black"/>')
        out.append(f'<text x="{x - 4}" y="300">{each["job"]}</text><text x="{x - 4}" y="314">{each["engine"]}</text>'
                   f'<text x="{x}" y="286">{off:+.1f}</text>')
    with open(path, "w") as file:
        file.write("\n".join([*out, "</svg>\n"]))


def main():
    log, results, kernel, picture = sys.argv[1:]
    runs, controls = parse(log)
    for side, kib, read in controls:
        print(f"  a file of {kib} KiB read twice, {side}: {read} KiB from the drive")
    rows = [row(*key, of) for key, of in runs.items()]
    if not rows:
        return
    show(rows)
    beyond = [f"{each['engine']} {each['job']}" for each in rows if abs(each["deviation_percent"]) > PAPER_PERCENT]
    print(f"  beyond the paper's {PAPER_PERCENT} %: {', '.join(beyond) or 'none'}")
    draw(rows, picture)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with open(results, "a") as out:
        for each in rows:
            out.write(json.dumps(dict(bench="nofscache", at=now, kernel=kernel, **each)) + "\n")


main()
