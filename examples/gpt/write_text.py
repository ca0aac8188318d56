#!/usr/bin/env python3
"""Writes text.txt, the text that the example learns: short tales from a workshop of mosaics.

    examples/gpt/write_text.py [<bytes>]      to stdout; about 100,000 bytes by default

It is copied from nowhere: a generator of our own writes it by a grammar of our own, so that the
same text comes out everywhere. The grammar is small enough for a small model to learn in a minute,
and keeps a few things that take longer: who acts in a tale, sums that are right, quotes that close.
"""

import sys

PEOPLE = "Ada Bruno Clara Dino Elena Fabio Greta Hugo Irene Jonas".split()
COLOURS = "white black red blue green golden grey violet".split()
STONES = "marble glass slate shell clay amber".split()
SUBJECTS = ["a fish", "a ship", "a lion", "the moon", "an old king", "a vine", "a pair of birds",
            "the sea", "a garden", "a city wall", "a dancer", "the north wind"]
PLACES = ["in the bath house", "on the temple floor", "over the gate", "by the fountain",
          "in the long hall", "under the stairs", "on the chapel wall"]
TIMES = ["One morning", "Late in the day", "Before the rain", "After the feast",
         "In the first week", "At noon", "When the bells rang", "That winter"]
TOOLS = ["hammer", "chalk line", "trowel", "little saw", "lamp", "level"]
NUMBERS = ("no one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
           "fifteen sixteen seventeen eighteen").split()
MOODS = ["smiled", "said nothing", "laughed", "shook the dust from both hands", "looked again",
         "nodded slowly", "began to sing"]
SAYINGS = ["A picture is only patience cut in pieces",
           "Lay the edge first and the middle will follow",
           "No tile is too small to be missed", "Who counts the stones sleeps well",
           "The gap belongs to the picture too", "Many hands, one floor",
           "What one hand holds, another must bring"]


class Dice:
    """Numbers that are the same in every version of every language (a linear congruence)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def pick(self, things):
        return things[self.below(len(things))]


def plural(count, colour):
    return f"{NUMBERS[count]} {colour} tile" + ("" if count == 1 else "s")


def counting(dice, who):
    colour, a, b = dice.pick(COLOURS), 1 + dice.below(9), 1 + dice.below(9)
    return dice.pick([
        f"{who} had {plural(a, colour)} and found {NUMBERS[b]} more, which made "
        f"{plural(a + b, colour)}.",
        f"Of {plural(a + b, colour)} {who} broke {NUMBERS[b]}, and {NUMBERS[a]} "
        f"{'was' if a == 1 else 'were'} left.",
    ])


def laying(dice, who):
    a, b = dice.pick(COLOURS), dice.pick(COLOURS)
    return dice.pick([
        f"{who} laid a row of {a} {dice.pick(STONES)} beside a row of {b} {dice.pick(STONES)}.",
        f"With the {dice.pick(TOOLS)} {who} cut the {a} {dice.pick(STONES)} as thin as a leaf.",
        f"First came the {a} border, then the {b} one, and {who} stepped back to look.",
        f"The {dice.pick(STONES)} was too {dice.pick(['hard', 'soft', 'wet', 'dear'])}, so {who} "
        f"took {dice.pick(STONES)} instead.",
    ])


def speaking(dice, who, other):
    return dice.pick([
        f'"{dice.pick(SAYINGS)}," said {who}. {other} {dice.pick(MOODS)}.',
        f'"Where is the {dice.pick(TOOLS)}?" asked {who}. "{other} has it," came the answer.',
        f'"How many {dice.pick(COLOURS)} ones do you need?" asked {other}. '
        f'"{NUMBERS[2 + dice.below(9)].capitalize()}," said {who}, "and not one more."',
        f"{who} {dice.pick(MOODS)}, and {other} {dice.pick(MOODS)}.",
    ])


def tale(dice):
    who = dice.pick(PEOPLE)
    other = dice.pick([person for person in PEOPLE if person != who])
    subject, place = dice.pick(SUBJECTS), dice.pick(PLACES)
    lines = [f"{dice.pick(TIMES)} {who} began {subject} {place}."]
    for _ in range(2 + dice.below(4)):
        kind = dice.below(4)
        if kind == 0:
            lines.append(counting(dice, who))
        elif kind == 3:
            lines.append(speaking(dice, who, other))
        else:
            lines.append(laying(dice, who))
    lines.append(dice.pick([
        f"So {subject} was done, and {who} and {other} went home.",
        f"And that is how {who} made {subject} {place}.",
        f'When {subject} was done, {other} said: "{dice.pick(SAYINGS)}."',
    ]))
    return wrapped(" ".join(lines))


def wrapped(text, width=88):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join(lines + [line]) + "\n"


def main():
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    dice = Dice(2025)
    text = ""
    while len(text) < wanted:
        text += tale(dice) + "\n"
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
