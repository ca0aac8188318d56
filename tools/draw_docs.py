#!/usr/bin/env python3
"""Draws docs/drawings/*.svg. tests/checks/drawings_test.py checks that they are up to date.

    tools/draw_docs.py [<folder>]
"""

import pathlib
import sys

BLUE, ORANGE, GREEN, GREY, INK = "#cfe2f3", "#fce5cd", "#d9ead3", "#eeeeee", "#222222"


class Drawing:
    def __init__(self, width, height):
        self.size, self.parts = (width, height), []

    def box(self, x, y, w, h, text="", fill=BLUE):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="{INK}"/>')
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 5 + 16 * (i - (len(lines) - 1) / 2), line)

    def text(self, x, y, text, anchor="middle", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{text}</text>')

    def arrow(self, x1, y1, x2, y2, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}"{dash} marker-end="url(#head)"/>'
        )

    def svg(self):
        width, height = self.size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="14" fill="{INK}">\n'
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def mesh():
    d = Drawing(560, 230)
    d.text(310, 24, "axis tp", bold=True)
    for dp in range(2):
        d.text(86, 90 + 80 * dp, f"dp={dp}", anchor="end")
        for tp in range(4):
            rank = 4 * dp + tp
            d.box(100 + 110 * tp, 55 + 80 * dp, 100, 60, f"rank {rank}", ORANGE if rank == 6 else BLUE)
            if dp == 0:
                d.text(150 + 110 * tp, 46, f"tp={tp}")
    d.text(20, 130, "axis dp", anchor="start", bold=True)
    d.text(310, 218, "dp=2,tp=4: rank 6 is at dp=1, tp=2")
    return d


def placements():
    d = Drawing(720, 270)
    columns = (("S0", "rows"), ("S1", "columns"), ("R", "copies"), ("P(sum)", "addends"))
    for i, (name, what) in enumerate(columns):
        x = 20 + 175 * i
        d.text(x + 75, 26, f"{name}: {what}", bold=True)
        for rank in range(2):
            top = 45 + 105 * rank
            fill = (BLUE, ORANGE)[rank]
            d.box(x + 15, top, 120, 84, "", "white")
            if name == "S0":
                d.box(x + 15, top + 42 * rank, 120, 42, f"rank {rank}", fill)
            elif name == "S1":
                d.box(x + 15 + 60 * rank, top, 60, 84, f"rank {rank}", fill)
            elif name == "R":
                d.box(x + 15, top, 120, 84, f"rank {rank}", GREEN)
            else:
                d.box(x + 15, top, 120, 84, f"rank {rank}:\naddend {rank}", GREY)
    d.text(360, 258, "one matrix on tp=2; the frame is the global tensor, the filled part what the rank holds")
    return d


def redistribution():
    d = Drawing(720, 250)
    rows = (
        ("S0 to R: all_gather", "S0", "R"),
        ("S0 to S1: all_to_all", "S0", "S1"),
        ("P(sum) to S0: reduce_scatter", "P", "S0"),
    )

    def part(x, y, kind, rank):
        d.box(x, y, 72, 60, "", "white")
        fill = (BLUE, ORANGE)[rank]
        if kind == "S0":
            d.box(x, y + 30 * rank, 72, 30, "", fill)
        elif kind == "S1":
            d.box(x + 36 * rank, y, 36, 60, "", fill)
        else:
            d.box(x, y, 72, 60, "+" if kind == "P" else "", GREY if kind == "P" else GREEN)

    for i, (title, source, target) in enumerate(rows):
        x = 15 + 238 * i
        d.text(x + 105, 26, title, bold=True)
        for rank in range(2):
            y = 50 + 85 * rank
            part(x, y, source, rank)
            part(x + 138, y, target, rank)
            d.arrow(x + 76, y + 30, x + 134, 80)
            d.arrow(x + 76, y + 30, x + 134, 165)
    d.text(360, 236, "upper row: rank 0, lower row: rank 1; each arrow is what a rank contributes to another")
    return d


def dispatch():
    d = Drawing(720, 330)
    d.box(20, 20, 200, 48, "torch::mm(x, w)\nautograd records", GREY)
    d.box(20, 110, 200, 60, "decision known?\n(op, shardings, arguments)")
    d.box(270, 110, 200, 60, "rule: legal rows", ORANGE)
    d.box(510, 110, 190, 60, "plans: price of each row\nthe cheapest is kept", ORANGE)
    d.box(20, 210, 200, 48, "redistribute inputs\nthat need it", GREEN)
    d.box(270, 210, 200, 48, "libtorch's kernel on\nthe local tensors", GREEN)
    d.box(510, 210, 190, 48, "wrap results with\ntheir sharding", GREEN)
    d.arrow(120, 68, 120, 108)
    d.arrow(220, 140, 268, 140)
    d.text(244, 130, "no")
    d.arrow(470, 140, 508, 140)
    d.arrow(605, 170, 222, 222, dashed=True)
    d.arrow(120, 170, 120, 208)
    d.text(138, 195, "yes", anchor="start")
    d.arrow(220, 234, 268, 234)
    d.arrow(470, 234, 508, 234)
    d.text(360, 300, "the upper row runs once for each new combination, the lower one for each call")
    return d


def first_touch():
    d = Drawing(720, 290)
    ops = ("a", "b", "c", "c", "b", "a")
    x0, step = 130, 94
    d.text(20, 62, "ops", anchor="start", bold=True)
    for i, op in enumerate(ops):
        d.box(x0 + step * i, 40, step - 8, 34, op, GREY)
    d.text(x0 + 1.5 * step - 4, 26, "forward")
    d.text(x0 + 4.5 * step - 4, 26, "backward")
    rows = (("group a", BLUE, ((0, 1), (4.4, 6))), ("group b", ORANGE, ((0.3, 2), (2.4, 5))), ("group c", GREEN, ((1.3, 4),)))
    for i, (name, fill, spans) in enumerate(rows):
        y = 92 + 38 * i
        d.text(20, y + 20, name, anchor="start")
        for start, end in spans:
            d.box(round(x0 + step * start), y, round(step * (end - start)) - 8, 28, "gathered", fill)
    d.text(20, 230, "reduced", anchor="start", bold=True)
    for i, name in enumerate(("c", "b", "a")):
        d.box(x0 + step * (4 + i) - 20 - 26 * i, 212, 62, 28, name, GREY)
    d.text(360, 272, "a group is gathered shortly before its first touch and freed after the last; gradients as they come")
    return d


DRAWINGS = {
    "mesh": mesh,
    "placements": placements,
    "redistribution": redistribution,
    "dispatch": dispatch,
    "first_touch": first_touch,
}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "docs/drawings"
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
