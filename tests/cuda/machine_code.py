"""What nvdisasm prints of a kernel: its instructions, and the way through what does its work."""

import dataclasses
import re

WIDE = {"128": 16, "64": 8}  # bytes of an access that deserves to be called one
SLOW = 1000  # of a call or of what diverging threads do: the way goes past it


@dataclasses.dataclass
class Instruction:
    """One of a kernel, in the order of their addresses."""

    predicate: str
    operation: str
    operands: str
    target: int | None = None  # of a branch: number of an instruction

    @property
    def loads(self):
        return self.operation.startswith("LDG")

    @property
    def stores(self):
        return self.operation.startswith("STG")

    @property
    def told(self):
        """Reads what all threads of a kernel are told alike: through a pointer that nothing is written through."""
        return self.loads and ".CONSTANT" in self.operation

    @property
    def wide_bytes(self):
        """Of one thread, of an access of 8 or 16 bytes to arrays in the device's memory; else 0."""
        if not (self.loads or self.stores) or self.told:
            return 0
        return max((WIDE.get(part, 0) for part in self.operation.split(".")), default=0)

    @property
    def registers(self):
        return {int(number) for number in re.findall(r"\bR(\d+)", self.operands)}


def kernels(text):
    """Of what `nvdisasm -c` printed: each kernel's mangled name and instructions."""
    for section in re.split(r"^\s*\.section\s+\.text\.", text, flags=re.M)[1:]:
        name = re.match(r'[^",]+', section)[0]
        labels, code = {}, []
        for line in section.splitlines():
            if label := re.match(r"(\.L_x?_?\w+):", line):
                labels[label[1]] = len(code)
            elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+)?\s*([A-Z]\S*)\s*(.*?)\s*;", line):
                code.append(Instruction(found[1] or "", found[2], found[3]))
        for instruction in code:
            # Threads of a warp that are not together go elsewhere, which is rare.
            branch = instruction.operation.startswith("BRA") and ".DIV" not in instruction.operation
            if branch and (label := re.search(r"`\((\.L\w+)\)", instruction.operands)):
                instruction.target = labels.get(label[1])
        yield name, code


def way(code, first, last):
    """From `first` to the branch back at `last`: what moves most bytes at once, in the fewest instructions."""
    best = {first: (0, 0, None)}
    for i in range(first, last + 1):
        if i not in best or i == last:
            continue
        at = code[i]
        slow = SLOW if at.operation.startswith(("CALL", "WARPSYNC.COLLECTIVE")) else 1
        moved, cost = best[i][0] + at.wide_bytes, best[i][1] - slow
        onward = [i + 1]
        if at.operation.startswith(("EXIT", "RET")) and not at.predicate:
            onward = []
        elif at.target is not None:
            onward = [at.target] if not at.predicate else [i + 1, at.target]
        for following in onward:
            if i < following <= last and (moved, cost) > best.get(following, (-1, 0))[:2]:
                best[following] = (moved, cost, i)
    if last not in best:
        return []
    steps, i = [], last
    while i is not None:
        steps.append(code[i])
        i = best[i][2]
    return steps[::-1]


def loop(code):
    """The way once around the loop that moves most bytes. Empty if nothing moves any at once."""
    return longest(code, loops(code))


def work(code):
    """The same, or the way through the whole kernel if that moves more: its threads are then many, and each does its work
    once."""
    return longest(code, loops(code) + [(0, last) for last, step in enumerate(code) if step.operation.startswith("EXIT")])


def loops(code):
    return [(branch.target, last) for last, branch in enumerate(code) if branch.target is not None and branch.target < last]


def longest(code, ends):
    """Of ways from some instructions to others, the one that moves most bytes."""
    chosen, score = [], (0, 0)
    for first, last in ends:
        steps = way(code, first, last)
        moved = sum(step.wide_bytes for step in steps)
        if (moved, -len(steps)) > score:
            chosen, score = steps, (moved, -len(steps))
    return chosen


def in_flight(steps):
    """Bytes that a thread has asked for, at the most, before it needs the first of them."""
    most, pending = 0, []  # of loads in their order: bytes, registers
    for step in steps * 2:
        used = step.registers
        needed = [i for i, (_, registers) in enumerate(pending) if registers & used]
        if needed:
            pending = pending[needed[-1] + 1:]
        if step.loads and step.wide_bytes:
            begin = int(re.match(r"R(\d+)", step.operands)[1])
            pending.append((step.wide_bytes, set(range(begin, begin + step.wide_bytes // 4))))
            most = max(most, sum(size for size, _ in pending))
    return most


def before_first_load(code):
    """Instructions before a thread asks for the first elements."""
    return next((i for i, step in enumerate(code) if step.loads and step.wide_bytes), len(code))
