"""The formats of optimizer states and masters, computed once more: in fp64 and integers, without the library.

usage: state_formats_test.py PROGRAM

PROGRAM answers with the library's functions (state_formats.cpp). All its answers must have the bits that
are computed here. Each operation on fp32 numbers is one on fp64 numbers, rounded once: products of two are
exact in fp64, and of a root or a quotient fp64 has more than twice the digits, so that no bit is lost.
"""

import math
import pathlib
import random
import struct
import subprocess
import sys
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
MASK = (1 << 64) - 1
INFINITY = 0x7F800000


def number(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


def word(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def fp32(x):
    """Rounded to nearest even."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


# Root codes: N, least and most scale of means of gradients and of means of squares.
KINDS = {"m": (127, 15, 254), "v": (255, 76, 190)}


def scale_of(kind, words):
    _, least, most = KINDS[kind]
    top = max(w & 0x7FFFFFFF for w in words)
    if top >= INFINITY:
        return 255
    if top == 0:
        return 0
    largest = number(top)
    if kind == "v":
        largest = fp32(math.sqrt(largest))
    # The least power of two that is not below it.
    mantissa, exponent = math.frexp(largest)
    power = exponent - 1 if mantissa == 0.5 else exponent
    return min(max(power + 127, least), most)


def encode(kind, w, scale, bits):
    """bits: 16 random ones, or None to round to nearest."""
    if scale == 255:
        return 0
    if w & 0x7FFFFFFF == 0:
        return 0
    largest = KINDS[kind][0]
    x = number(w)
    magnitude = abs(x) if kind == "m" else fp32(math.sqrt(x))
    # N² over a power of two, so that one product is rounded.
    level = fp32(magnitude * math.ldexp(float(largest * largest), 127 - scale))
    level = min(level, float(largest * largest))
    root = fp32(math.sqrt(level))
    lower = math.floor(root)
    if bits is None:
        code = round(root)  # halves to even
    else:
        chance = (bits + 0.5) / 65536
        code = lower + (1 if level - lower * lower > fp32(chance * (2 * lower + 1)) else 0)
    if kind == "v":
        return max(code, 4)
    return -code if w >> 31 else code


def decode(kind, scale, code):
    if scale == 255:
        return None  # NaN
    if scale == 0:
        return 0
    largest = KINDS[kind][0]
    unit = fp32(math.ldexp(1.0, scale - 127) / (largest * largest))
    value = fp32(float(code * abs(code)) * unit)
    return word(value if kind == "m" else fp32(value * value))


# Masters beside parameters of 16 bits.
def split_16(w):
    if w & 0x7FFFFFFF > INFINITY:
        sign = w >> 31 << 31
        return (sign | 0x7FC00000) >> 16, 0, sign | 0x7FC00000
    upper, rest = divmod(w, 1 << 16)
    parameter = upper + (1 if rest >= 0x8000 else 0)
    return parameter, rest, w


def split_8(w, k):
    sign, magnitude = w >> 31 << 31, w & 0x7FFFFFFF
    if magnitude > INFINITY:
        narrow = sign | 0x7FC00000
    elif magnitude == INFINITY:
        narrow = w
    else:
        # Between multiples of 256 by magnitude, which is a random choice of k.
        narrow = sign | min((magnitude + k) // 256 * 256, INFINITY)
    parameter, rest, _ = split_16(narrow)
    return parameter, rest // 256, narrow


def stochastic(w, h):
    sign, magnitude = w >> 31 << 31, w & 0x7FFFFFFF
    if magnitude > INFINITY:
        return sign >> 16 | 0x7FC0
    below, rest = divmod(magnitude, 1 << 16)
    return sign >> 16 | (below + (1 if rest + h >= 1 << 16 else 0))


# Random bits.
def stir(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def key_of(seed, name, part, array):
    hashed = 0xCBF29CE484222325
    for octet in name.encode():
        hashed = (hashed ^ octet) * 0x100000001B3 & MASK
    key = 0
    for one in (hashed, part, array, seed):
        key = stir((key ^ one) + 0x9E3779B97F4A7C15 & MASK)
    return key


def philox(counter, key, rounds=7):
    a, b, c, d = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(rounds):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ low, second & 0xFFFFFFFF, first >> 32 ^ d ^ high, first & 0xFFFFFFFF
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return a, b, c, d


def random_bits(key, count, element, bits):
    """The `bits` bits of an element, of which a block of 128 has so many in their order."""
    block, place = divmod(element * bits, 128)
    words = philox((block & 0xFFFFFFFF, block >> 32, count & 0xFFFFFFFF, count >> 32), key)
    whole = sum(w << 32 * i for i, w in enumerate(words))
    return whole >> place & (1 << bits) - 1


def ask(questions):
    done = subprocess.run([PROGRAM, "answer"], input="\n".join(questions) + "\n", capture_output=True, text=True,
                          check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions)
    return answers


class StateFormats(unittest.TestCase):
    maxDiff = 2000

    def hold(self, asked):
        """asked: (question, expected answer)."""
        answers = ask([question for question, _ in asked])
        wrong = [f"{question}: {answer}, not {expected}"
                 for (question, expected), answer in zip(asked, answers) if answer != expected]
        self.assertEqual(wrong[:5], [], f"{len(wrong)} of {len(asked)} are wrong")

    def words(self, kind, draw):
        """A group: numbers of magnitudes that are near each other, or far apart, or anything."""
        reach = draw.choice([4, 30, 120, 277])
        top = draw.randrange(reach, 278) - 149 if reach < 277 else 128
        group = []
        for _ in range(draw.choice([1, 2, 31, 32])):
            mantissa = draw.choice([1.0, 1.5, 1 + draw.random()])
            x = math.ldexp(mantissa, top - 1 - draw.randrange(reach))
            w = word(x) if draw.random() > 0.05 else draw.choice([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF])
            group.append(w | (draw.getrandbits(1) << 31 if kind == "m" else 0))
        return group

    def test_the_table(self):
        """This program has the rows of the format's definition."""
        self.assertEqual(encode("m", 0xBF000000, 0x7F, None), -90)
        self.assertEqual(encode("m", 0x3E800000, 0x7F, 0x8000), 63)
        self.assertEqual(decode("m", 0x7F, -90), 0xBF00903F)
        self.assertEqual(scale_of("v", [0x000116C2]), 0x4C)
        self.assertEqual(encode("v", 0x2C8CBCCC, 0x71, 0), 47)
        self.assertEqual(decode("v", 0x71, 46), 0x2C8ACC12)
        self.assertEqual(split_8(0x3F807F80, 0x80), (0x3F81, 0x80, 0x3F808000))
        self.assertEqual(philox((0, 0, 0, 0), 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48))

    def test_root_codes(self):
        for kind in KINDS:
            draw = random.Random(1)
            asked = []
            for _ in range(3000):
                words = self.words(kind, draw)
                if draw.random() < 0.01:
                    words[-1] = draw.choice([INFINITY, 0x7FC00000, 0x7F800001])
                scale = scale_of(kind, words)
                bits = [draw.choice([None, 0, 0x8000, 0xFFFF, draw.getrandbits(16)]) for _ in words]
                codes = [encode(kind, w, scale, h) for w, h in zip(words, bits)]
                question = " ".join(f"{w:x} {'n' if h is None else format(h, 'x')}" for w, h in zip(words, bits))
                asked.append((f"encode_{kind} {question}", " ".join([format(scale, "x"), *map(str, codes)])))
            self.hold(asked)

    def test_halves(self):
        """Numbers whose level has a root between two codes, as exactly as fp32 has it: to the even one."""
        found = 0
        for kind, (largest, _, _) in KINDS.items():
            asked = []
            for lower in range(4, largest):
                level = (lower + 0.5) ** 2
                root = fp32(level / largest**2)
                x = word(root if kind == "m" else fp32(root * root))
                for w in range(x - 40, x + 41):
                    magnitude = number(w) if kind == "m" else fp32(math.sqrt(number(w)))
                    if fp32(math.sqrt(fp32(magnitude * largest**2))) != lower + 0.5:
                        continue
                    found += 1
                    even = lower + lower % 2
                    asked.append((f"encode_{kind} 3f800000 n {w:x} n", f"7f {largest} {even}"))
                    if kind == "m":
                        asked.append((f"encode_m 3f800000 n {w | 1 << 31:x} n", f"7f 127 {-even}"))
            self.hold(asked)
        self.assertGreater(found, 200)

    def test_numbers_of_codes(self):
        for kind, (largest, least, most) in KINDS.items():
            codes = range(-largest if kind == "m" else 0, largest + 1)
            asked = [(f"decode_{kind} {scale:x} {code & 0xFF:x}", format(decode(kind, scale, code), "x"))
                     for scale in [0, *range(least, most + 1)] for code in codes if scale or code == 0]
            self.hold(asked)
            nan = int(ask([f"decode_{kind} ff 0"])[0], 16)
            self.assertGreater(nan & 0x7FFFFFFF, INFINITY)

    def test_masters(self):
        draw = random.Random(2)
        asked = []
        for _ in range(20000):
            w = draw.choice([draw.getrandbits(32), draw.getrandbits(16) << 16 | draw.choice([0x7F80, 0x7FFF, 0x8000, 0xFFFF])])
            k, h = draw.choice([0, 0x80, 0xFF, draw.getrandbits(8)]), draw.getrandbits(16)
            asked.append((f"split_16 {w:x}", "%x %x %x" % split_16(w)))
            asked.append((f"split_8 {w:x} {k:x}", "%x %x %x" % split_8(w, k)))
            asked.append((f"stochastic {w:x} {h:x}", "%x" % stochastic(w, h)))
        self.hold(asked)

    def test_random_bits(self):
        draw = random.Random(3)
        asked = []
        for _ in range(4000):
            seed, name = draw.getrandbits(64), draw.choice(["w", "h0.qkv.w", "größe", "x" * 300])
            part, array = draw.choice([0, 1, 7]), draw.choice([0, 1, 2])
            count = draw.choice([1, 1000, 1 << 40, draw.getrandbits(64)])
            element = draw.choice([0, 1, 15, 16, draw.getrandbits(20), draw.getrandbits(60)])
            key = key_of(seed, name, part, array)
            asked.append((f"random {seed:x} {name} {part:x} {array:x} {count:x} {element:x}",
                          "%x %x" % (random_bits(key, count, element, 16), random_bits(key, count, element, 8))))
        self.hold(asked)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
