#!/usr/bin/env python3
"""Draws what a program has written as JSON, with matplotlib.

    collective_bench --ranks 2,4 --benchmark_out=rows.json && plot.py rows.json busbw.svg
    train_gpt --compare --json run.json && plot.py run.json run.svg
    zero-plan memory --charts --json memory.json && plot.py memory.json memory.svg

Of a benchmark of collectives busbw over bytes, the baseline dashed. Instead of a picture, --table prints
the medians of each size beside the baseline's, and --fit how time follows bytes: latency and bandwidth by
least squares of the relative error, so that a size of 1 KiB counts as much as one of 256 MiB. Of a
comparison of the trainer losses, bytes held and tokens per second; of the planner its charts. PICTURE ends
in .svg, .png or .pdf.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys


def curve(title, points, **more):
    return {"title": title, "points": points, **more}


def collectives(document):
    """Medians over repetitions by kind (operation, type, place, ranks), in the order of the file."""
    runs = {}
    for run in document["benchmarks"]:
        name = run.get("run_name", run["name"])
        if run.get("run_type") == "aggregate" or not name.startswith("collective/") or "busbw" not in run:
            continue
        runs.setdefault(name, []).append(run)
    kinds = {}
    for name, all_runs in runs.items():
        _, op, dtype, place, size, ranks = name.split("/")[:6]
        row = {key: statistics.median(run[key] for run in all_runs)
               for key in ("real_time", "algbw", "busbw", "raw_algbw")}
        row["bytes"] = int(size.split(":")[1])
        kinds.setdefault((op, dtype, place, int(ranks.split(":")[1])), []).append(row)
    if not kinds:
        sys.exit("there is no benchmark of a collective in it")
    return kinds


def title_of(kind):
    op, dtype, place, ranks = kind
    return f"{op} {dtype}, {ranks} ranks" + (", in place" if place == "in_place" else "")


def fit(rows):
    """(seconds, seconds a byte, root mean square of the relative error) of time over bytes."""
    pairs = [(row["bytes"] / row["algbw"] * 1e-9, row["bytes"]) for row in rows]
    xx = sum(1 / t**2 for t, _ in pairs)
    xy = sum(n / t**2 for t, n in pairs)
    yy = sum((n / t) ** 2 for t, n in pairs)
    x = sum(1 / t for t, _ in pairs)
    y = sum(n / t for t, n in pairs)
    latency = rate = 0.0
    if xx * yy - xy * xy > 1e-12 * xx * yy:
        latency, rate = (x * yy - y * xy) / (xx * yy - xy * xy), (y * xx - x * xy) / (xx * yy - xy * xy)
    if rate <= 0:  # one size, or times that no line follows
        latency, rate = x / xx, 0.0
    if latency < 0:
        latency, rate = 0.0, y / yy
    off = [(latency + rate * n) / t - 1 for t, n in pairs]
    return latency, rate, math.sqrt(sum(o * o for o in off) / len(off))


def print_fits(document):
    print("time = latency + bytes / bandwidth; error: root mean square, relative")
    for kind, rows in collectives(document).items():
        latency, rate, error = fit(rows)
        bandwidth = f"{1e-9 / rate:.4g}" if rate > 0 else "-"
        print(f"{title_of(kind):45} {latency * 1e6:9.2f} us + bytes / {bandwidth} GB/s, error {error:.2f}")


def print_table(document):
    labels = {run["label"].removeprefix("raw: ") for run in document["benchmarks"] if "label" in run}
    kinds = collectives(document)
    print(f"medians; busbw in GB/s; baseline: {', '.join(sorted(labels)) or 'not known'}")
    print(f"{'':36} {'bytes':>11} {'us':>10} {'busbw':>8} {'baseline':>8} {'ratio':>6}")
    ratios = []
    for kind, rows in kinds.items():
        for row in rows:
            ratio = row["algbw"] / row["raw_algbw"]
            ratios.append((ratio, f"{kind[0]} of {row['bytes']:,} bytes"))
            print(f"{title_of(kind):36} {row['bytes']:11,} {row['real_time']:10.1f} {row['busbw']:8.2f} "
                  f"{row['busbw'] / ratio:8.2f} {ratio:6.2f}")
    (low, least), (high, most) = min(ratios), max(ratios)
    print(f"speed over the baseline's: from {low:.2f} ({least}) to {high:.2f} ({most})")


def bench_charts(document):
    series = []
    for kind, rows in collectives(document).items():
        color = f"C{len(series) // 2 % 10}"
        series.append(curve(title_of(kind), [(r["bytes"], r["busbw"]) for r in rows], color=color))
        series.append(curve("", [(r["bytes"], r["raw_algbw"] * r["busbw"] / r["algbw"]) for r in rows],
                            color=color, linestyle="dashed"))
    return [{"title": "collectives; dashed: the baseline", "x_label": "bytes", "y_label": "busbw, GB/s",
             "log_x": True, "series": series}]


def trainer_charts(document):
    stages = document["stages"]
    names = [stage["configuration"] or stage["stage"] for stage in stages]
    held = [stage["bytes_per_rank"]["held"] for stage in stages]
    roles = [role for role in held[0] if any(of[role] for of in held)]
    losses = [curve(name, [(stage["first_step"] + i + 1, loss) for i, loss in enumerate(stage["losses"])])
              for name, stage in zip(names, stages)]
    layers = [curve(role, [(0, of[role] / 1e6) for of in held]) for role in roles]
    speed = [curve("tokens/s", [(0, stage["tokens_per_s"]) for stage in stages])]
    return [{"title": "loss", "x_label": "step", "y_label": "nats", "series": losses},
            {"title": "held by a rank", "y_label": "MB", "bars": names, "series": layers},
            {"title": "speed", "y_label": "tokens/s", "bars": names, "series": speed}]


def charts_of(document):
    if isinstance(document, dict):
        if "benchmarks" in document:
            return bench_charts(document)
        if "stages" in document and "bit_identical" in document:
            return trainer_charts(document)
        if document.get("charts"):
            return document["charts"]
    sys.exit("there is nothing to draw in it")


def draw(charts, picture):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py needs matplotlib (Debian: python3-matplotlib)")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(charts), 1, figsize=(9, 4.5 * len(charts)), squeeze=False,
                                   layout="constrained")
    for axes, chart in zip(rows[:, 0], charts):
        bars = chart.get("bars") or []
        below = [0.0] * len(bars)
        for one in chart["series"]:
            style = {key: one[key] for key in ("color", "linestyle") if key in one}
            label = one["title"] or "_"  # no line of its own in the key
            if bars:
                heights = [y for _, y in one["points"]]
                axes.bar(range(len(bars)), heights, 0.6, below, label=label)
                below = [a + b for a, b in zip(below, heights)]
            else:
                axes.plot(*zip(*one["points"]), marker="" if "linestyle" in style else ".", label=label,
                          **style)
        if bars:
            turned = {"rotation": -30, "ha": "left"} if len(bars) > 5 else {}
            axes.set_xticks(range(len(bars)), bars, **turned)
        if chart.get("log_x"):
            axes.set_xscale("log", base=2)
        if chart.get("log_y"):
            axes.set_yscale("log")
        axes.set(title=chart["title"], xlabel=chart.get("x_label", ""), ylabel=chart.get("y_label", ""))
        axes.grid(alpha=0.4)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    figure.savefig(picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path, metavar="JSON")
    parser.add_argument("picture", nargs="?", metavar="PICTURE")
    parser.add_argument("--table", action="store_true", help="print medians instead")
    parser.add_argument("--fit", action="store_true", help="print latencies and bandwidths instead")
    options = parser.parse_args()
    if [options.picture is not None, options.table, options.fit].count(True) != 1:
        parser.error("give a PICTURE, --table or --fit")
    if options.picture and pathlib.Path(options.picture).suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"a picture ends in .svg, .png or .pdf, not {options.picture}")
    try:
        document = json.loads(options.json.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{options.json}: {error}")
    if options.table:
        print_table(document)
    elif options.fit:
        print_fits(document)
    else:
        draw(charts_of(document), options.picture)


if __name__ == "__main__":
    main()
